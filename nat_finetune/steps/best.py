"""Which checkpoint is a run's result: the one that the validation set likes best, or the last one.

It is read off the evaluations in the run folder, never kept beside them: a resumed run, a report, `eval` and `export` can't
disagree about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nat_finetune.config.schema import FinetuningConfig, ValidationConfig
from nat_finetune.data.intervals import paired_gain
from nat_finetune.data.seeds import derive_seed
from nat_finetune.runstore import RunStore, checkpoint_name
from nat_finetune.types import Estimate, EvalResult, PolicyRef


@dataclass(frozen=True, slots=True)
class Validated:
    """The validation set after so many steps."""

    steps_done: int
    result: EvalResult

    @property
    def trained(self) -> bool:
        """Whether there was an update before it: the untrained policy is no checkpoint."""
        return self.steps_done > 0 and self.result.policy is not None and self.result.policy.version > 0


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint that `finetuning.validation.select` chooses."""

    steps_done: int
    policy: PolicyRef
    value: Estimate
    waited: int
    """Validations since then without a better one."""

    @property
    def checkpoint(self) -> str:
        """Its folder below `checkpoints/`."""
        return checkpoint_name(self.steps_done)


def validated(store: RunStore) -> list[Validated]:
    """All evaluations on the validation set, in their order."""
    names = sorted(path.stem for path in (store.folder / "evaluations").glob("validation-*.json"))
    found = [(int(name.removeprefix("validation-")), store.evaluation(name)) for name in names]
    return [Validated(steps, result) for steps, result in found if result is not None]


def best_checkpoint(store: RunStore, settings: ValidationConfig | None) -> Best | None:
    """The best checkpoint so far, the earliest of equals; None where no metric selects, or none was known yet."""
    if settings is None or settings.select is None:
        return None
    sign = 1 if settings.mode == "max" else -1
    best: Best | None = None
    for waited, point in enumerate(reversed([v for v in validated(store) if v.trained])):
        value, policy = point.result.metrics[settings.select], point.result.policy
        if policy is None or value.mean is None:
            continue
        if best is None or best.value.mean is None or sign * value.mean >= sign * best.value.mean:
            best = Best(point.steps_done, policy, value, waited)
    return best


def patience_message(best: Best | None, settings: ValidationConfig | None) -> str | None:
    """Why training should end here: no better checkpoint in `patience` validations; None where it should go on."""
    if best is None or settings is None or settings.patience is None or best.waited < settings.patience:
        return None
    return (
        f"{settings.select} on the validation set has not become better than {_shown(best.value)} after step "
        f"{best.steps_done}, in {best.waited} validations since (finetuning.validation.patience)"
    )


def describe_choice(store: RunStore, config: FinetuningConfig) -> dict[str, Any] | None:
    """For the report: which checkpoint is the run's result, and why; None before the first update."""
    state, settings = store.state(), config.validation
    if state.checkpoint is None:
        return None
    best = best_checkpoint(store, settings)
    if best is None or settings is None or settings.select is None:
        why = "the last one: finetuning.validation.select names no metric to choose by"
        return {"name": state.checkpoint, "steps_done": state.steps_done, "metric": None, "gain": None, "why": why}
    points = validated(store)
    before = next((v.result for v in points if v.steps_done == 0), None)
    after = next(v.result for v in points if v.steps_done == best.steps_done)
    gain = None if before is None else _gain(before, after, settings.select, config)
    superlative = "highest" if settings.mode == "max" else "lowest"
    reasons = [
        f"the {superlative} {settings.select} on the validation set, {_shown(best.value)}, "
        f"of {sum(v.trained for v in points)} validated checkpoints",
        _verdict(gain, settings),
    ]
    return {
        "name": best.checkpoint,
        "steps_done": best.steps_done,
        "metric": settings.select,
        "gain": None if gain is None else {"mean": gain.mean, "low": gain.low, "high": gain.high, "n": gain.n},
        "why": "; ".join(reasons),
    }


def _gain(before: EvalResult, after: EvalResult, metric: str, config: FinetuningConfig) -> Estimate:
    seed = derive_seed(config.seed, "validation gain", metric)
    return paired_gain(before.scores[metric], after.scores[metric], after.clusters, seed=seed, confidence=config.confidence)


def _verdict(gain: Estimate | None, settings: ValidationConfig) -> str:
    if gain is None or gain.mean is None or gain.low is None or gain.high is None:
        return "what it gained over the untrained policy there is unknown"
    better = gain.low > 0 if settings.mode == "max" else gain.high < 0
    said = "better than the untrained policy there" if better else "no significant gain over the untrained policy there"
    return f"{said}, {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def _shown(value: Estimate) -> str:
    if value.mean is None:
        return "unknown"
    if value.low is None or value.high is None:
        return f"{value.mean:.3f}"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"
