"""A run on the console: live on a terminal, plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from nat_finetune.remote.polling import described
from nat_finetune.report.backend import backend_lines
from nat_finetune.report.progress import Progress
from nat_finetune.types import EvalResult, TrainingJobRef, TrainingJobStatus


@contextmanager
def reporter(*, as_json: bool) -> Iterator[Progress]:
    """The reporter that fits standard output."""
    console = Console()
    if as_json:
        yield JsonProgress()
    elif console.is_terminal:
        with LiveProgress(console) as live:
            yield live
    else:
        yield PlainProgress(Console(width=150, soft_wrap=True))


class JsonProgress:
    """One JSON object a line on standard output."""

    def run_started(self, info: Mapping[str, Any]) -> None:
        """The folder and config of the run."""
        self._say("run_started", **info)

    def planned(self, steps: int, done: int) -> None:
        """How long the run is."""
        self._say("planned", steps=steps, done=done)

    def stage_started(self, step: int, stage: str, total: int | None) -> None:
        """A stage begins."""
        self._say("stage_started", step=step, stage=stage, total=total)

    def advanced(self, rollouts: int, tokens: int) -> None:
        """Too fine for a log."""

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """A step's metrics."""
        self._say("step_finished", **metrics)

    def job_status(self, step: int, ref: TrainingJobRef, status: TrainingJobStatus) -> None:
        """What the backend says of a job."""
        fields = {"state": status.state.value, "backend_state": status.backend_state, "metrics": dict(status.metrics)}
        self._say("job_status", step=step, job_id=ref.job_id, progress=status.progress, message=status.message, **fields)

    def evaluated(self, name: str, step: int, result: EvalResult) -> None:
        """Means and intervals of an evaluation."""
        self._say("evaluated", name=name, step=step, metrics=_metrics(result))

    def warning(self, text: str) -> None:
        """A warning."""
        self._say("warning", text=text)

    def finished(self, report: Mapping[str, Any]) -> None:
        """The outcome."""
        keys = ("run_id", "exit_code", "exit_reason", "headline", "metrics", "seconds", "backend")
        self._say("finished", **{key: report[key] for key in keys})

    def _say(self, event: str, **fields: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


class Pace:
    """How long the rest of a run will take, from the steps that this process finished."""

    def __init__(self, left: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._done, self._left = 0, left

    def finished(self) -> None:
        """One more step is done."""
        self._done, self._left = self._done + 1, max(0, self._left - 1)

    def __str__(self) -> str:
        """Such as `4 min left`; empty as long as nothing is known."""
        if not self._done or not self._left:
            return ""
        return f"{duration((self._clock() - self._began) / self._done * self._left)} left"


class PlainProgress:
    """A line a step, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._folder = ""
        self._steps: int | None = None
        self.pace = Pace()
        """How long the rest will take."""

    def run_started(self, info: Mapping[str, Any]) -> None:
        """The folder and config of the run."""
        self._folder = str(info["folder"])
        self.say(f"run folder: {self._folder}")
        for note in info.get("notes", ()):
            self.say(f"note: {note}")

    def planned(self, steps: int, done: int) -> None:
        """How long the run is: said with each step."""
        self._steps = steps
        self.pace = Pace(left=steps - done)
        if done:
            self.say(f"resumed: {done} of {steps} steps were done")

    def stage_started(self, step: int, stage: str, total: int | None) -> None:
        """Said when it is done."""

    def advanced(self, rollouts: int, tokens: int) -> None:
        """Too fine for a log."""

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """A step in one line."""
        self.pace.finished()
        left = str(self.pace)
        self.say(step_line(metrics, self._steps) + (f" · {left}" if left else ""))

    def job_status(self, step: int, ref: TrainingJobRef, status: TrainingJobStatus) -> None:
        """What the backend says of a job, in one line."""
        self.say(f"step {step} · job {ref.job_id} · {described(status)}")

    def evaluated(self, name: str, step: int, result: EvalResult) -> None:
        """An evaluation in one line."""
        self.say(f"{name} (policy {result.policy.version if result.policy else '?'}): {evaluation_line(result)}")

    def warning(self, text: str) -> None:
        """A warning."""
        self.say(f"warning: {text}")

    def finished(self, report: Mapping[str, Any]) -> None:
        """The outcome, the table of metrics, and where the report is."""
        self._console.print(outcome_table(report))
        for job in report["backend"]:
            for line in backend_lines(job):
                self.say(line)
        self.say(str(report["headline"]))
        for finding in report["audit"]:
            if finding["warning"]:
                self.say(f"warning: {finding['found']}")
        self.say(f"report: {self._folder}/report.html")

    def say(self, text: str) -> None:
        """Print a line as it is."""
        self._console.print(text, markup=False, highlight=False)


class LiveProgress:
    """A status line that moves, above it the lines of `PlainProgress`."""

    def __init__(self, console: Console) -> None:
        self._lines = PlainProgress(console)
        self._stage, self._step = "load", 0
        self._total: int | None = None
        self._rollouts, self._tokens, self._began = 0, 0, time.monotonic()
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._status)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def stop(self) -> None:
        """Take the status away, for good."""
        self._live.stop()

    def run_started(self, info: Mapping[str, Any]) -> None:
        """The folder and config of the run."""
        self._lines.run_started(info)

    def planned(self, steps: int, done: int) -> None:
        """How long the run is."""
        self._lines.planned(steps, done)

    def stage_started(self, step: int, stage: str, total: int | None) -> None:
        """Begin the status of a stage."""
        self._stage, self._step, self._total = stage, step, total
        self._rollouts, self._tokens, self._began = 0, 0, time.monotonic()

    def advanced(self, rollouts: int, tokens: int) -> None:
        """Move the status on."""
        self._rollouts += rollouts
        self._tokens += tokens

    def step_finished(self, metrics: Mapping[str, Any]) -> None:
        """A step in one line."""
        self._lines.step_finished(metrics)

    def job_status(self, step: int, ref: TrainingJobRef, status: TrainingJobStatus) -> None:
        """What the backend says of a job, in one line."""
        self._lines.job_status(step, ref, status)

    def evaluated(self, name: str, step: int, result: EvalResult) -> None:
        """An evaluation in one line."""
        self._lines.evaluated(name, step, result)

    def warning(self, text: str) -> None:
        """A warning."""
        self._lines.warning(text)

    def finished(self, report: Mapping[str, Any]) -> None:
        """The outcome, without the status."""
        self.stop()
        self._lines.finished(report)

    def _status(self) -> Text:
        seconds = time.monotonic() - self._began
        parts = [f"step {self._step}", self._stage, duration(seconds)]
        if self._total:
            parts.append(f"{self._rollouts}/{self._total} rollouts")
            if self._tokens and seconds > 0:
                parts.append(f"{self._tokens / seconds:,.0f} tokens/s")
            if 0 < self._rollouts < self._total:
                parts.append(f"{duration(seconds / self._rollouts * (self._total - self._rollouts))} to the stage's end")
        left = str(self._lines.pace)
        return Text(" · ".join([*parts, left] if left else parts), style="dim", no_wrap=True, overflow="ellipsis")


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(8.2), duration(250), duration(7_400)
    ('8 s', '4 min', '2.1 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


def step_line(metrics: Mapping[str, Any], steps: int | None = None) -> str:
    """A step: how many of all are done with it, rewards, what was kept and dropped, the update, seconds."""
    parts = [f"step {metrics['step']}", *([f"{metrics['step'] + 1}/{steps} done"] if steps is not None else [])]
    collected = metrics["rollouts"] > 0  # not where records are trained on, or the backend runs the rollouts
    parts += [f"{metrics['rollouts']} rollouts"] if collected else []
    failed = metrics["failed"]["infrastructure"]
    parts += [f"{failed} failed"] if failed else []
    for name, reward in metrics["reward"].items():
        parts.append(f"{name} {_number(reward['mean'])} (spread {_number(reward['spread'])})")
    kept, dropped, update = metrics["kept"], sum(metrics["dropped"].values()), metrics["update"]
    parts += [f"kept {kept}, dropped {dropped}"] if collected or kept or dropped or update is None else []
    parts.append("no update" if update is None else f"loss {_number(update.get('loss'))}")
    seconds = metrics["seconds"]
    parts.append(f"{seconds.get('collect', 0.0):.1f} + {seconds.get('update', 0.0):.1f} s")
    return " · ".join(parts)


def evaluation_line(result: EvalResult) -> str:
    """Each metric with its interval."""
    return ", ".join(f"{name} {_number(e.mean)} [{_number(e.low)}, {_number(e.high)}]" for name, e in result.metrics.items())


def outcome_table(report: Mapping[str, Any]) -> Table:
    """Before, after and gain of each metric on the test set."""
    table = Table("metric", "before", "after", "gain", "interval", "tasks", box=None)
    for name, row in report["metrics"].items():
        gain = row["gain"] or {"mean": None, "low": None, "high": None, "n": None}
        before, after = (_number((row[side] or {}).get("mean")) for side in ("before", "after"))
        interval = f"[{_number(gain['low'])}, {_number(gain['high'])}]"
        tasks = "unknown" if gain["n"] is None else str(gain["n"])
        table.add_row(*(Text(cell) for cell in (name, before, after, _number(gain["mean"]), interval, tasks)))
    return table


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _metrics(result: EvalResult) -> dict[str, Any]:
    return {name: {"mean": e.mean, "low": e.low, "high": e.high, "n": e.n} for name, e in result.metrics.items()}
