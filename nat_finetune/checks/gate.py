"""May this model be promoted? A paired test of a run's trained model against a baseline, on the same held-out examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nat_finetune.data.intervals import estimate, paired_gain
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.runstore import RunStore
from nat_finetune.types import Estimate, EvalResult

MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class GateRule:
    """What a model must show before it is promoted."""

    metric: str | None = None
    """None: the run's primary metric."""
    min_gain: float = 0.0
    """The gain's lower bound must be above this; a negative one asks for "not much worse"."""
    min_value: float | None = None
    """The metric's own lower bound must reach this; None: no floor."""
    confidence: float = 0.95


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What the gate says, and on what."""

    rule: GateRule
    run: str
    baseline: str
    value: Estimate
    """The metric after the run."""
    gain: Estimate
    """Over the baseline, paired by example."""
    failures: tuple[str, ...]
    """Why the model may not be promoted; none where it may."""

    @property
    def passed(self) -> bool:
        """Whether the model may be promoted."""
        return not self.failures


def judge(run: Path, baseline: Path | None, rule: GateRule) -> GateVerdict:
    """Hold a run's trained model against another run's, or against its own base model.

    Both must have been measured on the same test examples: `test-after` of the run, `test-after` of the baseline, or the
    run's own `test-before` where there is no baseline. Intervals are those of `data.intervals`, over clusters of examples,
    with a fixed seed.

    Raises:
        ConfigError: a folder holds no finished run, was measured on other examples, or does not know the metric.
    """
    mine = _measured(run, "test-after")
    theirs = _measured(run, "test-before") if baseline is None else _measured(baseline, "test-after")
    named = f"{run.name} before training" if baseline is None else baseline.name
    rule = replace(rule, metric=rule.metric or _primary(run, mine))
    metric = str(rule.metric)
    for folder, result in ((run, mine), (baseline or run, theirs)):
        if metric not in result.scores:
            known = ", ".join(result.scores)
            raise ConfigError(Problem(f"metric {metric!r} was not measured", file=str(folder), hint=f"there are: {known}"))
    before, after = theirs.scores[metric], mine.scores[metric]
    _same_examples(run, set(after), baseline or run, set(before))
    seed = derive_seed(0, "gate", metric)
    value = estimate(after, mine.clusters, seed=seed, confidence=rule.confidence)
    gain = paired_gain(before, after, mine.clusters, seed=seed, confidence=rule.confidence)
    return GateVerdict(rule, run.name, named, value, gain, tuple(_failures(rule, value, gain, named)))


def _failures(rule: GateRule, value: Estimate, gain: Estimate, baseline: str) -> list[str]:
    failures = []
    if gain.low is None:
        failures.append(
            f"{rule.metric}: {gain.n} tasks with a known score on both sides say nothing about the gain: test on more"
        )
    elif gain.low <= rule.min_gain:
        failures.append(
            f"{rule.metric}: the gain over {baseline} is {shown(gain, signed=True)}, its lower bound must be above "
            f"{rule.min_gain:+g}"
        )
    if rule.min_value is not None and (value.low is None or value.low < rule.min_value):
        failures.append(f"{rule.metric}: {shown(value)}, its lower bound must be at least {rule.min_value:g}")
    return failures


def shown(found: Estimate, *, signed: bool = False) -> str:
    """Mean, interval and n in one phrase."""
    form = "+.4f" if signed else ".4f"
    mean, low, high = ("unknown" if x is None else format(x, form) for x in (found.mean, found.low, found.high))
    return f"{mean} [{low}, {high}] on {found.n} tasks"


def _primary(run: Path, measured: EvalResult) -> str:
    """The metric that the run's report speaks of, else the first that was measured."""
    report: Any = RunStore(run).read_json("report.json") or {}
    named = report.get("primary_metric")
    return str(named) if named in measured.scores else next(iter(measured.scores))


def _measured(folder: Path, name: str) -> EvalResult:
    if not (folder / "run.json").is_file():
        raise ConfigError(
            Problem("this is no run folder", file=str(folder), hint="`nat-finetune runs` lists those below runs/")
        )
    store = RunStore(folder)
    result = store.evaluation(name)
    if result is not None:
        return result
    about: Any = store.read_json("report.json")
    ended = "it is not finished: nat-finetune run --resume" if about is None else "its config has no finetuning.test"
    raise ConfigError(Problem(f"there is no {name} evaluation", file=str(folder), hint=ended))


def _same_examples(run: Path, mine: set[str], baseline: Path, theirs: set[str]) -> None:
    """A paired test needs the same examples on both sides."""
    if mine == theirs:
        return
    only = [f"{len(mine - theirs)} only in {run.name}", f"{len(theirs - mine)} only in {baseline.name}"]
    names = ", ".join(sorted(mine ^ theirs)[:MOST_SHOWN])
    raise ConfigError(
        Problem(
            f"the two were not measured on the same test examples: {', '.join(only)} ({names})",
            file=str(run),
            hint="evaluate both on one test set",
        )
    )
