"""`sft_traj_builder`: the same traces as supervised data: the best candidates, or the calls of rollouts that earned enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Literal

from pydantic import Field, model_validator

from nat_finetune.config.component import Text, TrajectoryBuilderConfig
from nat_finetune.data.demonstrations import best_candidates, good_rollouts
from nat_finetune.errors import ConfigError, Problem
from nat_finetune.interfaces import Builder, TrajectoryBuilder
from nat_finetune.registry import register_trajectory_builder
from nat_finetune.types import Cause, Dropped, DropReason, Item, Rollout, Target


class SFTTrajBuilderConfig(TrajectoryBuilderConfig, name="sft_traj_builder"):
    """Completions to imitate, from the work that was recorded."""

    makes = "demonstration"

    source: Literal["candidates", "rollouts"] = "candidates"
    """The best scored candidate of each turn; or every trained call of the rollouts that earned `min_reward`."""
    ttc_step_name: Text = "dpo_candidate_move"
    """Candidates: step name under which the workflow or a strategy emits them."""
    min_score: float | None = None
    """Candidates: the least score of a best one that is imitated; null: any."""
    min_reward: float | None = None
    """Rollouts: the least reward of one that is imitated."""
    num_generations: int = Field(1, ge=1)
    """Rollouts of each example in a pass."""

    @property
    def generations(self) -> int:
        """Rollouts that it needs of each example."""
        return self.num_generations

    def candidate_step(self) -> str | None:
        """Name of the candidate step that it reads, None if it reads rollouts."""
        return self.ttc_step_name if self.source == "candidates" else None

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> SFTTrajBuilderConfig:
        of = {"candidates": {"ttc_step_name", "min_score"}, "rollouts": {"min_reward"}}
        ignored = {name for source, names in of.items() if source != self.source for name in names} & self.model_fields_set
        if ignored:
            raise ValueError(f"{', '.join(sorted(ignored))} would be ignored: source is {self.source}")
        if self.source == "rollouts" and self.min_reward is None:
            raise ValueError("source: rollouts needs min_reward: the least reward of a rollout that is imitated")
        return self


class SFTTrajBuilder:
    """Implements `interfaces.TrajectoryBuilder`."""

    def __init__(self, config: SFTTrajBuilderConfig, target: Target) -> None:
        if config.source == "rollouts" and len(target.rewards) != 1:
            found = f"sft_traj_builder with source: rollouts needs one reward, found {len(target.rewards)}"
            raise ConfigError(Problem(found, key="finetuning.reward_function"))
        self.generations = config.num_generations
        self._config = config
        self._target = target

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Demonstrations, and everything that was left out with its reason."""
        sound: list[Rollout] = []
        for rollout in rollouts:
            if rollout.failure is not None and rollout.failure.cause is Cause.INFRASTRUCTURE:
                reason, message = DropReason.INFRASTRUCTURE_FAILURE, rollout.failure.message
                yield Dropped("rollout", reason, message, rollout.example_id, rollout.rollout_id)
            else:
                sound.append(rollout)
        config, target = self._config, self._target
        if config.min_reward is None:
            yield from best_candidates(sound, config.ttc_step_name, config.min_score, target)
        else:
            yield from good_rollouts(sound, target.reward_names[0], config.min_reward, target)


@register_trajectory_builder(config_type=SFTTrajBuilderConfig)
async def sft_traj_builder(config: SFTTrajBuilderConfig, builder: Builder) -> AsyncIterator[TrajectoryBuilder]:
    """Make the builder."""
    yield SFTTrajBuilder(config, builder.target)
