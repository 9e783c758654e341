"""`dpo_traj_builder`: scored candidates of a turn to preference pairs; NAT's fields and defaults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from pydantic import Field

from nat_finetune.config.component import Text, TrajectoryBuilderConfig
from nat_finetune.data.pairs import PairBuilder, PairCounts, PairRules
from nat_finetune.interfaces import Builder, TrajectoryBuilder
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Cause, Dropped, DropReason, Item, Rollout, Target


class DPOTrajBuilderConfig(TrajectoryBuilderConfig, name="dpo_traj_builder"):
    """Preference pairs from the scored candidates that a workflow emits at its turns."""

    makes = "pair"

    ttc_step_name: Text = "dpo_candidate_move"
    """Step name under which the workflow or a strategy emits candidates."""
    exhaustive_pairs: bool = True
    """All pairs of a turn; false: the best candidate against the worst."""
    min_score_diff: float = Field(0.0, ge=0)
    """Least difference of scores; ties are never pairs."""
    min_chosen_score: float | None = None
    """Least score of the chosen candidate: the better of two bad ones can still be unfit; null: any."""
    max_pairs_per_turn: int | None = Field(None, ge=1)
    """Keep the pairs with the largest differences."""
    reward_from_score_diff: bool = True
    """The pair's reward is the difference of scores; false: the chosen one's score."""
    require_multiple_candidates: bool = True
    """As in NAT, without effect on the pairs: a turn with one candidate makes none, and is counted."""
    num_generations: int = Field(1, ge=1)
    """Rollouts of each example in a pass."""

    @property
    def generations(self) -> int:
        """Rollouts that it needs of each example."""
        return self.num_generations

    def candidate_step(self) -> str | None:
        """Name of the candidate step that it reads."""
        return self.ttc_step_name


class DPOTrajBuilder:
    """Implements `interfaces.TrajectoryBuilder`."""

    def __init__(self, config: DPOTrajBuilderConfig, target: Target) -> None:
        self.generations = config.num_generations
        rules = PairRules(
            step_name=config.ttc_step_name,
            exhaustive=config.exhaustive_pairs,
            min_score_diff=config.min_score_diff,
            min_chosen_score=config.min_chosen_score,
            max_pairs_per_turn=config.max_pairs_per_turn,
            reward_from_score_diff=config.reward_from_score_diff,
        )
        self._pairs = PairBuilder(rules, target)

    @property
    def counts(self) -> PairCounts:
        """What all pairs so far were made of."""
        return self._pairs.counts

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Pairs, and everything that was left out with its reason.

        A rollout that broke down is left out whole: its candidates were scored, but a fault of the infrastructure may have
        made the scores.

        Raises:
            DataError: candidates were emitted, but none under `ttc_step_name`.
        """
        failed: list[Dropped] = []
        yield from self._pairs.build(_sound(rollouts, failed))
        yield from failed


def _sound(rollouts: Iterable[Rollout], failed: list[Dropped]) -> Iterator[Rollout]:
    for rollout in rollouts:
        if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
            reason, message = DropReason.INFRASTRUCTURE_FAILURE, rollout.failure.message
            failed.append(Dropped("rollout", reason, message, rollout.example_id, rollout.rollout_id))
        else:
            yield rollout


@register_trajectory_builder(config_type=DPOTrajBuilderConfig)
async def dpo_traj_builder(config: DPOTrajBuilderConfig, builder: Builder) -> AsyncIterator[TrajectoryBuilder]:
    """Make the builder."""
    yield DPOTrajBuilder(config, builder.target)
