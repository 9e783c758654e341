"""`grpo_traj_builder`: several rollouts of one example, compared with one another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Literal

from pydantic import Field, field_validator, model_validator

from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.data.groups import build_groups, comparison_warnings
from nat_finetune.data.trajectories import Credit
from nat_finetune.interfaces import Builder, Built, TrajectoryBuilder
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Dropped, Group, Item, Rollout, Target, Turn


class GRPOTrajBuilderConfig(TrajectoryBuilderConfig, name="grpo_traj_builder"):
    """Groups of `num_generations` rollouts of the same example, for GRPO and its relatives."""

    makes = "group"
    token_level = True

    num_generations: int = Field(8, json_schema_extra={"minimum": 2})
    """Rollouts of each example in a step. At least 2: a rollout is compared with the others of its example, never with
    those of another one."""
    credit: Literal["outcome", "per_turn", "shaped"] = "outcome"
    """`outcome`: the reward of the rollout pays each of its turns. `per_turn`: a turn earns the step rewards that the workflow
    paid from it on (`tracing.reward`). `shaped`: a turn earns its own step rewards and the outcome. The outcome pays a turn
    that has no known credit, and one that is alone: fewer than two rollouts got there."""
    compare_turns: Literal["index", "state"] = "index"
    """Per-turn and shaped credit: a turn is compared with the turns of the same number, or with those that had the same prompt,
    token for token."""
    discount: float = Field(1.0, ge=0, le=1)
    """Per-turn credit: weight of the next turn's return. 0: a turn earns its own step reward only."""
    outcome_weight: float | None = Field(None, ge=0)
    """How much of the rollout's reward is added: under per-turn credit to its last turn (null: 0), under shaped credit to each
    turn (null: 1)."""
    truncated: Literal["keep", "mask", "drop"] = "keep"
    """A rollout that `max_tokens` cut off in a trained call: trained like any other; compared with the others of its group but
    not trained itself; or left out."""

    @property
    def generations(self) -> int:
        """Rollouts that it needs of each example."""
        return self.num_generations

    @field_validator("num_generations")
    @classmethod
    def _something_to_compare(cls, value: int) -> int:
        if value < 2:
            raise ValueError(f"must be at least 2, found {value}: a rollout earns by comparison with others of its own example")
        return value

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> GRPOTrajBuilderConfig:
        users = {"discount": ["per_turn"], "outcome_weight": ["per_turn", "shaped"], "compare_turns": ["per_turn", "shaped"]}
        for key, credits in users.items():
            if key in self.model_fields_set and self.credit not in credits:
                raise ValueError(f"{key} would be ignored: only `credit: {' or '.join(credits)}` uses it")
        return self

    @property
    def paid(self) -> Credit:
        """All of this, as the trajectories want it."""
        shaped = self.credit == "shaped"
        weight = self.outcome_weight if self.outcome_weight is not None else float(shaped)
        return Credit(
            per_turn=self.credit == "per_turn",
            shaped=shaped,
            discount=self.discount,
            outcome_weight=weight,
            by_state=self.compare_turns == "state",
            truncated=self.truncated,
        )


class GRPOTrajBuilder:
    """Implements `interfaces.TrajectoryBuilder`."""

    def __init__(self, config: GRPOTrajBuilderConfig, target: Target) -> None:
        self._target = target
        self.generations = config.num_generations
        self._credit = config.paid

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Groups, and everything that was left out with its reason."""
        yield from build_groups(rollouts, self._target, self._credit)

    def warnings(self, built: Built) -> list[str]:
        """What is likely a mistake in the workflow or the config."""
        found = comparison_warnings(built.dropped)
        turns = [turn for group in built.items if isinstance(group, Group) for turn in _turns(group)]
        if (self._credit.per_turn or self._credit.shaped) and turns and all(turn.credit is None for turn in turns):
            found.append(
                "credit by turn, but no turn has a known step reward: the outcome pays every turn alike; pay each turn with "
                "tracing.reward(name, value, call=reply), or set credit: outcome"
            )
        return found


def _turns(group: Group) -> Iterator[Turn]:
    for trajectory in group.trajectories:
        for segment in trajectory.segments:
            yield from segment.turns


@register_trajectory_builder(config_type=GRPOTrajBuilderConfig)
async def grpo_traj_builder(config: GRPOTrajBuilderConfig, builder: Builder) -> AsyncIterator[TrajectoryBuilder]:
    """Make the builder."""
    yield GRPOTrajBuilder(config, builder.target)
