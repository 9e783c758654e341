"""The order of preference training, which several trainers share: passes over the examples, then updates on their pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nat_finetune.data.selection import SelectionRules
from nat_finetune.errors import RolloutFailureLimit
from nat_finetune.interfaces import Step, TrainingRun
from nat_finetune.types import Rollout


@dataclass(frozen=True, slots=True)
class RoundRules:
    """How many of each, and what happens when a pass fails."""

    selection: SelectionRules
    passes: int = 1
    """Over the examples, before the updates of a round."""
    rounds: int = 1
    warm_ups: int = 0
    """Updates before the first preference update that only imitate the chosen completions."""
    new_reference: bool = False
    """Whether preferences are held against the policy that the round before made; else against that of the beginning."""
    go_on: bool = False
    """Whether a pass with too many failed rollouts is left out, instead of ending the run."""
    wait: bool = True
    """Whether an update is waited for; else the run ends once its job is submitted."""


class RoundTrainer:
    """Implements `interfaces.Trainer`: a round's candidates are all of one policy; then come updates on their pairs."""

    def __init__(self, rules: RoundRules) -> None:
        self._rules = rules

    async def train(self, run: TrainingRun) -> None:
        """Drive the run to its end."""
        rules = self._rules
        async for made in run.rounds(rules.rounds, passes=rules.passes, warm_ups=rules.warm_ups):
            rollouts = [rollout for step in made.passes for rollout in await self._collect(run, step)]
            built = run.build(rollouts, step=made.passes[-1].index)
            chosen = await run.select(built, rules.selection)
            async for step in run.pending(made.warm_ups):
                await run.update(replace(chosen, warm_up=True), step, wait=rules.wait)
                await run.validate_if_due(step)
            async for step in run.pending(made.updates):
                if step.index == made.updates[0].index and (made.index == 0 or rules.new_reference):
                    run.hold_reference()
                await run.update(chosen, step, wait=rules.wait)
                await run.validate_if_due(step)

    async def _collect(self, run: TrainingRun, step: Step) -> list[Rollout]:
        try:
            return await run.collect(step)
        except RolloutFailureLimit as error:
            if not self._rules.go_on:
                raise
            run.warn(f"pass {step.index + 1} of {self._rules.passes} is left out: {error}")
            return []
