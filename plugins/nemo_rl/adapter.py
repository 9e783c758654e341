"""The adapter: a collection to a folder of files, the files to a job, the job to a checkpoint and what is said of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from nat_finetune_plugins.nemo_rl.checkpoints import (
    Checkpoint,
    Log,
    best_of,
    conversion,
    newest_step,
    read_checkpoints,
    read_log,
)
from nat_finetune_plugins.nemo_rl.job_config import CHECKPOINTS, CONFIG, Place
from nat_finetune_plugins.nemo_rl.launchers import Launcher, Start, check_rollouts
from nat_finetune_plugins.nemo_rl.prepared import Prepared, length_measure, prepare_dpo, prepare_groups, write_files
from nat_finetune_plugins.nemo_rl.settings import DpoConfig, GroupsConfig, NemoRLTrainerAdapterConfig

from nat_finetune.errors import BackendError, ConfigError
from nat_finetune.remote import process
from nat_finetune.remote.polling import follow
from nat_finetune.types import (
    Collection,
    JobSpec,
    JobState,
    PolicyRef,
    Target,
    TrainingJobRef,
    TrainingJobStatus,
    UpdateResult,
)

_STATE = "nemo_rl.json"
_NOT_PART_OF_THE_JOB = {"launch", "poll_seconds", "timeout_seconds", "max_poll_failures", "env_vars", "workspace"}
"""Settings that don't change what is trained: with others of these it is the same job."""
_OF_THE_START = {"command", "config", "checkout", "launch"}
"""Of a spec: what a job's reference does not repeat."""
_UNTOLD = {"folder", "notes", "born", "group", "host"}
"""Of a job's reference: what the report does not repeat."""


class NemoRLTrainerAdapter:
    """Implements `remote.interfaces.RemoteAdapter`."""

    def __init__(
        self,
        config: NemoRLTrainerAdapterConfig,
        launcher: Launcher,
        *,
        target: Target,
        name: str,
        seed: int,
        folder: Path | None,
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._target = target
        self._name = name
        self._seed = seed
        self._root = config.workspace if config.workspace is not None else folder and folder / "nemo_rl"
        self._version = 0
        self._counted: str | None = None

    async def health(self) -> None:
        """Raise BackendError if no job could be started: no checkout, no Ray."""
        await self._launcher.health()
        if isinstance(self._config.algorithm, GroupsConfig):
            await check_rollouts(self._config.algorithm.rollouts)

    async def prepare(self, collection: Collection, reference: PolicyRef | None) -> JobSpec:
        """Check the items, and write the job's folder.

        Raises:
            NoTrainableSignal: NeMo RL would train nothing, and say nothing of it.
            DataError, ConfigError: they can't be trained on as the config wants it.
            OutputError: the folder can't be written.
        """
        if self._version:
            raise ConfigError(
                "each job of NeMo RL begins from `model`, so a second update would forget the first: set finetuning.num_epochs "
                "to 1, and `epochs` of the adapter to the passes over the data"
            )
        prepared = await asyncio.to_thread(self._prepared, collection)
        key = self._key(collection, prepared)
        name = f"{collection.run_id}-{collection.step:05d}-{key[:12]}"
        place = Place(self._seen_by_job(name), self._config.checkout)
        files = prepared.files(place)
        await asyncio.to_thread(write_files, self._folder(name), files)
        payload = {
            **prepared.about,
            "folder": name,
            "command": [*prepared.before(place), *self._config.command, prepared.script, "--config", place.path(CONFIG)],
            "config_sha256": sha256(files[CONFIG]).hexdigest(),
            "data_sha256": prepared.digest,
            "checkout": self._config.checkout,
            "launch": self._config.launch.name,
        }
        return JobSpec(collection.run_id, collection.step, key, self._name, prepared.items, payload, prepared.dropped)

    async def find(self, spec: JobSpec) -> TrainingJobRef | None:
        """The job that any process started for this spec; None: there is none.

        Raises:
            BackendError: Ray can't be asked.
        """
        found = await self._launcher.find(self._start(spec))
        return None if found is None else self._with_payload(found, spec)

    async def submit(self, spec: JobSpec) -> TrainingJobRef:
        """Start it; a second start of the same spec, from whichever process, starts nothing.

        Raises:
            BackendError: it could not be started.
        """
        found = await self.find(spec)
        return self._with_payload(await self._launcher.start(self._start(spec)), spec) if found is None else found

    async def status(self, ref: TrainingJobRef) -> TrainingJobStatus:
        """Where it stands, with the step and the losses that its log tells last."""
        folder, steps = self._attempt(ref), ref.metadata.get("steps")
        told = await self._launcher.status(ref, folder)
        log = read_log(await self._launcher.log(ref, folder))
        # A further attempt goes on from the newest checkpoint, and its log begins there.
        done = max(len(log.curve), newest_step(self._folder(ref.metadata["folder"]) / CHECKPOINTS))
        progress = 1.0 if told.state is JobState.COMPLETED else min(1.0, done / steps) if steps and done else None
        message = told.message
        if told.state is JobState.FAILED:
            message = "; ".join(part for part in (log.reason, message, _last(log)) if part)
        losses = dict(log.curve[-1]) if log.curve else {}
        return TrainingJobStatus(
            told.state, progress, message, backend_state=told.backend_state, metrics=losses, detail=told.detail
        )

    async def wait(
        self, ref: TrainingJobRef, *, on_status: Callable[[TrainingJobStatus], None] | None = None
    ) -> TrainingJobStatus:
        """Wait until it ends; `on_status` gets each new status.

        Raises:
            JobGoesOn: `timeout_seconds` are over.
            OutOfReach: it could not be asked too often in a row.
        """
        config = self._config
        return await follow(
            lambda: self.status(ref),
            interval=config.poll_seconds,
            timeout=config.timeout_seconds,
            max_failures=config.max_poll_failures,
            on_status=on_status or (lambda status: None),
            what=f"NeMo RL's job {ref.job_id}",
        )

    async def cancel(self, ref: TrainingJobRef) -> None:
        """End it, with everything that it started."""
        await self._launcher.cancel(ref, self._attempt(ref))

    async def logs(self, ref: TrainingJobRef) -> list[str]:
        """The driver's lines."""
        return (await self._launcher.log(ref, self._attempt(ref))).splitlines()

    async def result(self, ref: TrainingJobRef) -> UpdateResult:
        """Its best checkpoint and what was said on the way.

        Raises:
            BackendError: it failed, was cancelled, still runs, or ended without a checkpoint.
        """
        told, folder = await self.status(ref), self._folder(ref.metadata["folder"])
        log = read_log(await self._launcher.log(ref, self._attempt(ref)))
        if told.state is not JobState.COMPLETED:
            said = f": {told.message}" if told.message else ""
            raise BackendError(f"NeMo RL's job {ref.job_id} is {told.backend_state}{said}")
        found = await asyncio.to_thread(read_checkpoints, folder / CHECKPOINTS)
        best = best_of(found, ref.metadata.get("metric"))
        if best is None:
            raise BackendError(
                f"NeMo RL's job {ref.job_id} ended without an error and without a checkpoint in {folder / CHECKPOINTS}: it "
                f"trained nothing; its last line: {_last(log) or 'none'}"
            )
        if ref.key != self._counted:  # asked again, it is the same update
            self._version, self._counted = self._version + 1, ref.key
        return self._result(ref, told, log, found, best)

    def serving(self) -> bool:
        """Never: what NeMo RL writes must be converted and served first."""
        return False

    def save_state(self, folder: Path) -> None:
        """Which update was the last, and where its checkpoint is."""
        text = json.dumps({"version": self._version}, indent=2) + "\n"
        (folder / _STATE).write_text(text, encoding="utf-8")

    def load_state(self, folder: Path) -> None:
        """Continue from such a folder; the weights stay where NeMo RL put them."""
        path = folder / _STATE
        try:
            self._version = int(json.loads(path.read_text(encoding="utf-8"))["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{path} is no state of this adapter: {error!r}") from error

    async def close(self) -> None:
        """Let go of the backend; jobs go on."""
        await self._launcher.close()

    # ------------------------------------------------------------------------------------------------------------- inside

    def _prepared(self, collection: Collection) -> Prepared:
        algorithm = self._config.algorithm
        if not isinstance(algorithm, DpoConfig):
            return prepare_groups(self._config, algorithm, collection, self._target, self._seed)
        measure = length_measure(self._config.tokenizer or self._config.model)
        return prepare_dpo(self._config, algorithm, collection, measure, self._seed)

    def _key(self, collection: Collection, prepared: Prepared) -> str:
        settings = self._config.model_dump_json(exclude=_NOT_PART_OF_THE_JOB)
        about = (collection.run_id, collection.step, self._seed, settings, prepared.digest)
        return sha256(repr(about).encode()).hexdigest()

    def _folder(self, name: str) -> Path:
        if self._root is None:
            raise BackendError("there is no run folder for the job's files: give `workspace`")
        return (self._root / name).absolute()

    def _seen_by_job(self, name: str) -> str:
        elsewhere = self._config.workspace_on_cluster
        return str(self._folder(name)) if elsewhere is None else f"{elsewhere.rstrip('/')}/{name}"

    def _start(self, spec: JobSpec) -> Start:
        payload = spec.payload
        folder = self._folder(payload["folder"]) / attempt_of(spec.key)
        return Start(spec.key, f"{spec.run_id}/{spec.step}", folder, payload["command"])

    def _attempt(self, ref: TrainingJobRef) -> Path:
        return self._folder(ref.metadata["folder"]) / attempt_of(ref.key)

    def _with_payload(self, ref: TrainingJobRef, spec: JobSpec) -> TrainingJobRef:
        told = {key: value for key, value in spec.payload.items() if key not in _OF_THE_START}
        return TrainingJobRef(ref.job_id, ref.key, ref.adapter, {**ref.metadata, **told})

    def _result(
        self, ref: TrainingJobRef, told: TrainingJobStatus, log: Log, found: list[Checkpoint], best: Checkpoint
    ) -> UpdateResult:
        last, metric = found[-1], ref.metadata.get("metric")
        steps, tokens = last.number("total_steps"), last.number("total_valid_tokens")
        policy = PolicyRef(self._target.llm, self._version, str(best.folder))
        return UpdateResult(
            policy=policy,
            tokens_trained=None if tokens is None else int(tokens),
            tokens_masked=None,
            optimiser_steps=last.step if steps is None else int(steps),
            metrics={**_means(log), **_validation(best)},
            seconds=_seconds(self._attempt(ref), told),
            curve=log.curve,
            backend={
                "service": f"NeMo RL ({ref.metadata['launch']})",
                **{key: value for key, value in ref.metadata.items() if key not in _UNTOLD},
                "hosts": [ref.metadata["host"]] if "host" in ref.metadata else [],
                "status": told.backend_state,
                "output_model": str(best.folder),
                "checkpoint_chosen_by": metric if metric is not None and best.number(metric) is not None else "the last one",
                "checkpoints": {one.folder.name: _validation(one) for one in found},
                "losses": dict(log.curve[-1]) if log.curve else {},
                "losses_of_first_step": dict(log.curve[0]) if log.curve else {},
                "commands": self._commands(ref, best),
                "notes": [*ref.metadata.get("notes", ()), *_shortfall(ref, last)],
                "logs": list(log.last),
            },
        )

    def _commands(self, ref: TrainingJobRef, best: Checkpoint) -> list[str]:
        """How to make a Hugging Face folder of the checkpoint, with paths as the cluster sees them."""
        config, name = self._config, ref.metadata["folder"]
        seen = self._seen_by_job(name)
        return conversion(
            f"{seen}/{CHECKPOINTS}/{best.folder.name}",
            checkout=config.checkout,
            command=config.command,
            kind=config.backend if config.lora is None else f"{config.backend} lora",
            model=config.model,
            output=f"{seen}/hf_{best.folder.name}",
        )


def attempt_of(key: str) -> str:
    """Folder of one start below the job's: who runs it, its log, its exit code.

    A job that failed is started again under another key, with the same data and checkpoints: NeMo RL goes on from the newest.
    """
    return f"attempt-{key[:12]}"


def _last(log: Log) -> str:
    return next((line for line in reversed(log.last) if line.strip()), "")


def _means(log: Log) -> dict[str, float]:
    names = dict.fromkeys(name for step in log.curve for name in step)
    values = {name: [step[name] for step in log.curve if name in step] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}


def _validation(checkpoint: Checkpoint) -> dict[str, float]:
    """Its held-out figures, by NeMo RL's names."""
    known = {name: checkpoint.number(name) for name in checkpoint.info if name.startswith("val")}
    return {name: value for name, value in known.items() if value is not None}


def _shortfall(ref: TrainingJobRef, last: Checkpoint) -> list[str]:
    planned = ref.metadata.get("steps")
    return [] if planned is None or last.step >= planned else [f"it ended after step {last.step} of {planned}"]


def _seconds(folder: Path, told: TrainingJobStatus) -> float:
    """From start to end, as the backend says it, or by the files that mark both."""
    began, ended = (told.detail.get(key) for key in ("start_time", "end_time"))
    if isinstance(began, int) and isinstance(ended, int):
        return (ended - began) / 1000
    marks: Mapping[str, Any] = {"began": folder / process.WHO, "ended": folder / process.EXIT}
    if not all(path.exists() for path in marks.values()):
        return 0.0
    return float(marks["ended"].stat().st_mtime - marks["began"].stat().st_mtime)
