"""The two processes that a case compares, and what the machine did beside them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from protocol import Job

HERE = Path(__file__).parent
LOADED_OTHERS, LOADED_STEAL = 0.10, 0.02
"""Shares of the machine's time: more than this given to others, or taken by the host, and a unit counts as disturbed."""


class OutOfTime(Exception):
    """The time limit came while a side worked."""


class SideProcess:
    """One side of a case, started and asked for units of work."""

    def __init__(self, python: str, script: str, job: Job, job_file: Path, log: Path) -> None:
        self.name = script.removesuffix(".py")
        job_file.write_text(json.dumps(asdict(job)))
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(HERE / script), str(job_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(job.threads) | {"BENCH_STARTED": repr(time.time())},
            )

    def ready(self, until: float) -> dict[str, Any]:
        """Wait for the model to be loaded; returns what it said of itself."""
        return self._answer("ready", until)

    def unit(self, until: float) -> dict[str, Any]:
        """Have it do a unit of work; returns its figures, with the machine's beside them."""
        watch = Machine.now()
        _pipe(self._process.stdin).write(b"go\n")
        _pipe(self._process.stdin).flush()
        unit = self._answer("unit", until)
        return unit | {"machine": watch.since(unit["step"]["cpu"] / max(unit["step"]["wall"], 1e-9))}

    def close(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            _pipe(pipe).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _answer(self, name: str, until: float) -> dict[str, Any]:
        pipe = _pipe(self._process.stdout)
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise OutOfTime(f"{self.name} was still at work")
        line = pipe.readline()
        if not line:
            tail = "\n".join(self._log.read_text().splitlines()[-15:])
            raise SystemExit(f"{self.name} ended before it answered; the end of its log ({self._log}):\n{tail}")
        answer: dict[str, Any] = json.loads(line)[name]
        return answer


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process was started with pipes")
    return pipe


def environment(threads: int) -> dict[str, str]:
    """Of both sides: so many threads, which wait for work as they do at a user's (OpenMP's spin for milliseconds at most)."""
    threading = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**os.environ, **threading, **quiet, "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A look at the machine's counters; None where it has no /proc."""

    at: float
    load: float | None
    ticks: tuple[int, int, int] | None
    """Busy, stolen, all: of all cores, in the kernel's ticks."""

    @classmethod
    def now(cls) -> Machine:
        """Look."""
        if not sys.platform.startswith("linux"):
            return cls(time.perf_counter(), None, None)
        values = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, _, irq, soft, steal = values
        return cls(time.perf_counter(), os.getloadavg()[0], (user + nice + system + irq + soft, steal, sum(values)))

    def since(self, own: float) -> dict[str, Any]:
        """What happened from then to now, given how many cores the measured process used itself."""
        now = Machine.now()
        if self.ticks is None or now.ticks is None:
            return {"load": None, "others": None, "steal": None, "disturbed": None}
        busy, stolen, whole = (after - before for before, after in zip(self.ticks, now.ticks, strict=True))
        cores = os.cpu_count() or 1
        others = max(0.0, busy / max(whole, 1) - own / cores)
        steal = stolen / max(whole, 1)
        disturbed = others > LOADED_OTHERS or steal > LOADED_STEAL
        return {"load": self.load, "others": round(others, 3), "steal": round(steal, 3), "disturbed": disturbed}


def run_check(python: str, peer: str, job: Job, folder: Path) -> dict[str, Any]:
    """Both sides' loss on an equal batch, one after the other, in processes of their own."""
    job_file = folder / "job.json"
    job_file.write_text(json.dumps(asdict(job)))
    for interpreter, script in ((python, "check_product.py"), (peer, "check_peer.py")):
        done = subprocess.run(
            [interpreter, str(HERE / script), str(job_file), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env=environment(job.threads),
        )
        if done.returncode:
            raise SystemExit(f"{script} failed:\n{done.stderr[-3000:]}")
    ours, theirs = (json.loads((folder / f"{side}.json").read_text()) for side in ("product", "peer"))
    found = {name: [ours[name], theirs[name]] for name in theirs}
    return {"equal": found, "difference": abs(ours["loss"] - theirs["loss"])}
