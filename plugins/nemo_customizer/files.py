"""The service's files: written as streams, hashed, and uploaded to the data store the way that its answer asks for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nat_finetune_plugins.nemo_customizer import answers, wire

from nat_finetune.data.exports.formats import file_names
from nat_finetune.errors import BackendError, OutputError
from nat_finetune.remote.http import Service

CHUNK = 3 * 256 * 1024
"""Bytes; a multiple of 3, so that pieces of base64 make a whole."""
TRAINING, VALIDATION = file_names("nemo-customizer")
"""Where they are in the dataset repository."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as a job's spec names it: its content is known by its digest."""

    path: str
    """In the dataset repository."""
    place: str
    """On disk: below the run folder, or absolute."""
    rows: int
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What an upload came to."""

    revision: str
    """The commit that the files are in."""
    modes: Mapping[str, str]
    """By path: `regular`, `lfs`, or `there` where the branch had the file already."""


def write_lines(lines: Iterable[bytes], target: Path) -> tuple[int, int, str]:
    """Rows, bytes and digest of a file of these lines; it gets its name once it is whole.

    Raises:
        OutputError: it can't be written.
    """
    digest, rows, size = hashlib.sha256(), 0, 0
    beside = target.with_name(f".{target.name}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            for line in lines:
                file.write(line)
                digest.update(line)
                rows, size = rows + 1, size + len(line)
        beside.replace(target)
    except OSError as error:
        raise OutputError(f"{target} can't be written: {error.strerror}") from error
    return rows, size, digest.hexdigest()


class DataStore:
    """The data store, as far as it takes files."""

    def __init__(self, service: Service, uploads: Service, *, timeout: float, find: Callable[[str], Path]) -> None:
        self._service = service
        self._uploads = uploads
        """The same host without credentials: the address of an upload is signed."""
        self._timeout = timeout
        self._find = find
        """Where a file is, by its `place`."""

    async def upload(self, repo: str, files: Iterable[DataFile], *, summary: str) -> Uploaded:
        """Put the files into the repository's main branch, all in one commit; what is there already is left.

        Doing it twice is the same as once.

        Raises:
            BackendError: refused, or a file is not what the spec says.
        """
        found = {file.path: (file, self._find(file.place)) for file in files}
        for file, path in found.values():
            await asyncio.to_thread(_check, file, path)
        modes = await self._modes(repo, found)
        large = [found[path] for path, mode in modes.items() if mode == "lfs"]
        if large:
            await self._upload_large(repo, large)
        lines = [(mode, *found[path]) for path, mode in modes.items() if mode != "there"]
        if not lines:
            return Uploaded(await self._newest(repo), modes)
        body = _Commit(summary, lines)
        answer = await self._service.post(
            wire.repository(repo, "commit"),
            retry=True,  # the same files at the same paths
            content=body,
            headers={**wire.NDJSON, "Content-Length": str(body.size)},
            timeout=_patience(body.size, self._timeout),
        )
        return Uploaded(answers.read(answers.Commit, answer, "the commit's answer").oid, modes)

    async def _modes(self, repo: str, found: Mapping[str, tuple[DataFile, Path]]) -> dict[str, str]:
        """How the server wants each file, or `there`."""
        samples = {path: base64.b64encode(await asyncio.to_thread(_head, place)) for path, (_, place) in found.items()}
        asked = [(path, samples[path].decode(), file.size) for path, (file, _) in found.items()]
        body = await self._service.post(wire.repository(repo, "preupload"), retry=True, json=wire.preupload_body(asked))
        answered = {mode.path: mode for mode in answers.read(answers.Preupload, body, "the preupload's answer").files}
        modes = {}
        for path, (file, place) in found.items():
            answer = answered.get(path)
            if answer is None or answer.mode not in ("regular", "lfs"):
                said = "nothing" if answer is None else f"uploadMode {answer.mode!r}"
                raise BackendError(f"{self._service.name}: expected uploadMode regular or lfs for {path}, found {said}")
            if answer.ignore:
                raise BackendError(
                    f"{self._service.name}: {repo} ignores {path} (its .gitignore): the job would train without it"
                )
            there = file.sha256 if answer.mode == "lfs" else await asyncio.to_thread(_git_digest, place, file.size)
            modes[path] = "there" if answer.oid == there else answer.mode
        return modes

    async def _upload_large(self, repo: str, files: Iterable[tuple[DataFile, Path]]) -> None:
        by_digest = {file.sha256: (file, path) for file, path in files}
        objects = [(digest, file.size) for digest, (file, _) in by_digest.items()]
        body = await self._service.post(wire.lfs_batch(repo), retry=True, json=wire.lfs_body(objects), headers=wire.LFS_JSON)
        batch = answers.read(answers.LargeBatch, body, "the answer to the LFS batch")
        if batch.transfer != "basic":
            raise BackendError(f"{self._service.name}: expected LFS transfer basic, found {batch.transfer!r}")
        answered = {item.oid: item for item in batch.objects}
        for digest, (file, path) in by_digest.items():
            item = answered.get(digest)
            if item is None or item.error is not None:
                reason = "it is not in the answer" if item is None or item.error is None else item.error.message
                raise BackendError(f"{self._service.name}: the data store does not take {file.path}: {reason}")
            if item.actions:
                await self._put(file, path, item.actions)

    async def _put(self, file: DataFile, path: Path, actions: Mapping[str, answers.Action]) -> None:
        upload, verify = actions.get("upload"), actions.get("verify")
        if upload is not None:
            headers = {**(upload.header or {}), "Content-Length": str(file.size)}
            limit = _patience(file.size, self._timeout)
            await self._uploads.put(upload.href, content=_Stream(path), headers=headers, timeout=limit)
        if verify is not None:
            asked = {"oid": file.sha256, "size": file.size}
            await self._service.post(verify.href, retry=True, json=asked, headers=verify.header)

    async def _newest(self, repo: str) -> str:
        body = await self._service.get(wire.repository(repo, "revision"))
        return answers.read(answers.Revision, body, f"the revision of {repo}").sha


class _Stream:
    """A file's bytes, as often as they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                yield chunk


class _Commit:
    """A commit's lines, regular files inside them in base64, as often as they are asked for."""

    def __init__(self, summary: str, files: Iterable[tuple[str, DataFile, Path]]) -> None:
        self._header = wire.commit_header(summary)
        self._files = list(files)
        self.size = len(self._header) + sum(map(_line_size, self._files))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._header
        for mode, file, path in self._files:
            if mode == "lfs":
                yield wire.commit_large(file.path, file.sha256, file.size)
                continue
            before, after = wire.commit_regular(file.path)
            yield before
            async for chunk in _Stream(path):
                yield base64.b64encode(chunk)
            yield after


def _line_size(line: tuple[str, DataFile, Path]) -> int:
    mode, file, _ = line
    if mode == "lfs":
        return len(wire.commit_large(file.path, file.sha256, file.size))
    return sum(map(len, wire.commit_regular(file.path))) + 4 * -(-file.size // 3)


def _patience(size: int, timeout: float) -> float:
    """Seconds for an upload: those of a request, and one for each megabyte."""
    return timeout + size / 1e6


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)


def _git_digest(path: Path, size: int) -> str:
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check(file: DataFile, path: Path) -> None:
    try:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise BackendError(f"{path} was written for this job and can't be read: {error.strerror}") from error
    if found != file.sha256:
        raise BackendError(f"{path} is not what was prepared for this job any more (sha256 {found}, expected {file.sha256})")


def as_payload(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """Files as a spec's payload holds them."""
    return [asdict(file) for file in files]
