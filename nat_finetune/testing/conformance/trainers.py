"""What every trainer promises: each step once, in order, on what was collected for it; a kill at any moment costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection as Container
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from nat_finetune.config.component import ItemKind, TrainerConfig
from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.errors import BackendError, NatFinetuneError, NoTrainableSignal, RolloutFailureLimit
from nat_finetune.testing.conformance.knobs import refuses_unknown_keys, variations
from nat_finetune.testing.conformance.report import Check, examine
from nat_finetune.testing.parts import FakeBuilder, made
from nat_finetune.testing.training_run import FakeTrainingRun, Killed


@dataclass(frozen=True, slots=True)
class TrainerCase:
    """A trainer's config."""

    config: TrainerConfig
    idle: Container[str] = ()
    """Keys that need not change the order of steps."""

    def drive(self, run: FakeTrainingRun, config: TrainerConfig | None = None) -> FakeTrainingRun:
        """Let a fresh trainer drive a run to its end."""

        async def once() -> FakeTrainingRun:
            async with made(config or self.config, FakeBuilder()) as trainer:
                await trainer.train(run)
            return run

        return asyncio.run(once())

    def kinds(self) -> tuple[ItemKind, ...]:
        """Kinds of items that it says it fits."""
        return tuple(sorted(self.config.fits))


def check_trainer(config: TrainerConfig, *, without_effect: Container[str] = ()) -> list[str]:
    """Hold a trainer to its interface; call it where no event loop runs.

    `without_effect` names keys of the config that show neither in the orders of a run, nor in those of a run in which too many
    rollouts fail.

    Returns:
        The promises that were looked at.

    Raises:
        ConformanceError: some are broken; names each.
    """
    return examine(f"trainer {config.component_name!r}", TrainerCase(config, without_effect), CHECKS)


def _fits(case: TrainerCase) -> Iterator[str]:
    known = get_args(ItemKind)
    if not case.kinds() or set(case.kinds()) - set(known):
        yield f"fits must name some of {', '.join(known)}, found {sorted(case.config.fits)}"


def _every_step(case: TrainerCase) -> Iterator[str]:
    for kind in case.kinds():
        run = case.drive(FakeTrainingRun(kind))
        trained = [index for index, *_ in run.updates]
        if not trained:
            yield f"with {kind}s: it makes no update"
        elif trained != run.planned:
            yield f"with {kind}s: the steps to train are {run.planned}, it trains {trained}"


def _its_own_rollouts(case: TrainerCase) -> Iterator[str]:
    run = case.drive(FakeTrainingRun(case.kinds()[0]))
    built = [name for method, *about in run.orders if method == "build" for name in about[1]]
    collected = [rollout.rollout_id for rollout in run.collected]
    if sorted(built) != sorted(collected):
        lost, twice = sorted(set(collected) - set(built)), len(built) - len(set(built))
        yield f"it builds from other rollouts than it collected: {len(lost)} are lost, {twice} are built from twice"
    trained = {name for _, _, names, _ in run.updates for name in names}
    missing = {rollout.rollout_id.rpartition("-")[0] for rollout in run.collected} - trained
    if missing:
        yield f"items of {len(missing)} examples were selected and never trained on"
    unselected = [order for order in run.orders if order[0] == "select"]
    if run.updates and not unselected and not case.config.hands_over:
        yield "it never calls select: the config's filters, weights and the end for want of signal are left out"


def _validates(case: TrainerCase) -> Iterator[str]:
    run = case.drive(FakeTrainingRun(case.kinds()[0]))
    for number, (method, *about) in enumerate(run.orders):
        following = run.orders[number + 1] if number + 1 < len(run.orders) else None
        if method == "update" and following != ("validate_if_due", about[0]):
            yield f"no validate_if_due(step) after the update of step {about[0]}: patience and the best checkpoint need it"


def _resumes(case: TrainerCase) -> Iterator[str]:
    for kind in case.kinds():
        whole = case.drive(FakeTrainingRun(kind))
        for count in range(len(whole.orders)):
            killed = FakeTrainingRun(kind, killed_after=count)
            try:
                case.drive(killed)
            except Killed:
                resumed = case.drive(FakeTrainingRun(kind, resumed=killed))
            else:
                yield f"with {kind}s: killed after {count} orders, it went on: it catches BaseException"
                continue
            if resumed.updates != whole.updates:
                yield (
                    f"with {kind}s: killed after {count} orders and resumed, it trains {_updates(resumed)}, without that "
                    f"{_updates(whole)}: keep what matters in the run, not in the trainer"
                )
                break


def _updates(run: FakeTrainingRun) -> str:
    return ", ".join(f"step {index} on {len(names)} items" for index, _, names, _ in run.updates)


def _errors_pass(case: TrainerCase) -> Iterator[str]:
    raised: tuple[tuple[str, BaseException], ...] = (
        ("collect", asyncio.CancelledError()),
        ("update", asyncio.CancelledError()),
        ("update", BackendError("the backend is gone")),
        ("select", NoTrainableSignal("nothing to learn from")),
    )
    if case.config.hands_over:
        raised = (("hand_over", asyncio.CancelledError()), ("hand_over", BackendError("the backend is gone")))
    for method, error in raised:
        try:
            case.drive(FakeTrainingRun(case.kinds()[0], raises={(method, 0): error}))
        except (asyncio.CancelledError, NatFinetuneError) as found:
            if type(found) is not type(error):
                yield f"{type(error).__name__} of {method} became {type(found).__name__}"
        else:
            yield f"it swallows {type(error).__name__} of {method}: the run must end there"


def _knobs(case: TrainerCase) -> Iterator[str]:
    yield from refuses_unknown_keys(case.config)
    unknown = sorted(case.config.unhonoured - set(FinetuningConfig.model_fields))
    if unknown:
        yield f"unhonoured names what is no key of finetuning: {', '.join(unknown)}"
    run = case.drive(FakeTrainingRun(case.kinds()[0]))
    if not run.used_steps and "examples_per_step" not in case.config.unhonoured:
        yield "examples_per_step is ignored: it takes rounds, not steps; name it in `unhonoured`, so that it is refused"
    usual = _effect(case, case.config)
    tried: dict[str, bool] = {}
    for key, other in variations(case.config):
        if key not in case.idle and not tried.get(key):
            tried[key] = _effect(case, other) != usual
    for key in (key for key, matters in tried.items() if not matters):
        yield f"{key} is ignored: with other values the same is ordered; honour it, refuse it, or name it in without_effect"


def _effect(case: TrainerCase, config: TrainerConfig) -> Any:
    """Everything by which a key may show: a run, and one in which a step has too many failed rollouts."""
    kind = case.kinds()[0]
    usual = case.drive(FakeTrainingRun(kind), config)
    failing = FakeTrainingRun(kind, raises={("collect", 0): RolloutFailureLimit("too many failed")})
    try:
        case.drive(failing, config)
    except RolloutFailureLimit:
        failing.warnings.append("it ended there")
    return usual.orders, usual.updates, failing.orders, failing.warnings


CHECKS: dict[str, Check[TrainerCase]] = {
    "fits what it declares": _fits,
    "trains each step once, in order": _every_step,
    "trains on what it collected": _its_own_rollouts,
    "validates where it is due": _validates,
    "goes on where it was killed": _resumes,
    "lets errors and cancellation end the run": _errors_pass,
    "ignores no key": _knobs,
}
