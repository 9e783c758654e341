"""`grpo_traj_builder`: several rollouts of one example, compared with one another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Literal

from pydantic import Field, field_validator, model_validator

from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.data.groups import build_groups
from nat_finetune.data.trajectories import Credit
from nat_finetune.interfaces import Builder, TrajectoryBuilder
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Dropped, Item, Rollout, Target


class GRPOTrajBuilderConfig(TrajectoryBuilderConfig, name="grpo_traj_builder"):
    """Groups of `num_generations` rollouts of the same example, for GRPO and its relatives."""

    makes = "group"
    token_level = True

    num_generations: int = Field(8, json_schema_extra={"minimum": 2})
    """Rollouts of each example in a step. At least 2: a rollout is compared with the others of its example, never with
    those of another one."""
    credit: Literal["outcome", "per_turn"] = "outcome"
    """`outcome`: the reward of the rollout pays each of its turns. `per_turn`: a turn earns the step rewards that the workflow
    paid from it on (`tracing.reward`); the outcome pays a turn whose return is unknown because a turn was paid nothing."""
    discount: float = Field(1.0, ge=0, le=1)
    """Per-turn credit: weight of the next turn's return. 0: a turn earns its own step reward only."""
    outcome_weight: float = Field(0.0, ge=0)
    """Per-turn credit: how much of the rollout's reward is added to its last turn."""

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
        ignored = {"discount", "outcome_weight"} & self.model_fields_set
        if self.credit == "outcome" and ignored:
            raise ValueError(f"{', '.join(sorted(ignored))} would be ignored: only `credit: per_turn` uses it")
        return self


class GRPOTrajBuilder:
    """Implements `interfaces.TrajectoryBuilder`."""

    def __init__(self, config: GRPOTrajBuilderConfig, target: Target) -> None:
        self._target = target
        self.generations = config.num_generations
        self._credit = Credit(
            per_turn=config.credit == "per_turn",
            discount=config.discount,
            outcome_weight=config.outcome_weight,
        )

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Groups, and everything that was left out with its reason."""
        yield from build_groups(rollouts, self._target, self._credit)


@register_trajectory_builder(config_type=GRPOTrajBuilderConfig)
async def grpo_traj_builder(config: GRPOTrajBuilderConfig, builder: Builder) -> AsyncIterator[TrajectoryBuilder]:
    """Make the builder."""
    yield GRPOTrajBuilder(config, builder.target)
