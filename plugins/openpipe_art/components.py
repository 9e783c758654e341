"""What this plugin registers: builder, adapter and trainer under NAT's `_type` names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace

from nat_finetune_plugins.openpipe_art.config import ArtTrainerAdapterConfig, ArtTrainerConfig, ArtTrajBuilderConfig

from nat_finetune.data.groups import build_groups, comparison_warnings
from nat_finetune.data.trajectories import Credit, target_calls
from nat_finetune.interfaces import Builder, Built, Trainer, TrainerAdapter, TrainingRun, TrajectoryBuilder
from nat_finetune.registry import register_trainer, register_trainer_adapter, register_trajectory_builder
from nat_finetune.types import Dropped, Group, Item, ModelCall, Rollout, Target


class ArtTrajBuilder:
    """Implements `interfaces.TrajectoryBuilder`: groups as of `grpo_traj_builder`, which keep their calls."""

    def __init__(self, config: ArtTrajBuilderConfig, target: Target) -> None:
        self._target = target
        self.generations = config.num_generations

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        """Groups, and everything that was left out with its reason."""
        calls: dict[str, tuple[ModelCall, ...]] = {}

        def remembered() -> Iterator[Rollout]:
            for rollout in rollouts:
                calls[rollout.rollout_id] = tuple(target_calls(rollout, self._target))
                yield _without_unknown_prompts(rollout)

        for made in build_groups(remembered(), self._target, Credit()):
            if isinstance(made, Group):
                kept = tuple(replace(one, calls=calls[one.rollout_id]) for one in made.trajectories)
                yield replace(made, trajectories=kept)
            else:
                yield made

    def warnings(self, built: Built) -> list[str]:
        """What is likely a mistake in the workflow or the config."""
        return comparison_warnings(built.dropped)


def _without_unknown_prompts(rollout: Rollout) -> Rollout:
    """ART renders prompts itself: where their ids are not known (0.4.11), a segment holds the sampled tokens alone."""
    events = tuple(
        replace(event, prompt_ids=()) if isinstance(event, ModelCall) and event.prompt_ids is None else event
        for event in rollout.events
    )
    return replace(rollout, events=events)


class ArtTrainer:
    """Implements `interfaces.Trainer`."""

    async def train(self, run: TrainingRun) -> None:
        """Fresh rollouts of the step that the server is at, one update, then the next step."""
        async for step in run.steps():
            collection = await run.select(run.build(await run.collect(step), step=step.index))
            await run.update(collection, step)
            await run.validate_if_due(step)


@register_trajectory_builder(config_type=ArtTrajBuilderConfig)
async def openpipe_art_traj_builder(config: ArtTrajBuilderConfig, builder: Builder) -> AsyncIterator[TrajectoryBuilder]:
    """Make the builder."""
    yield ArtTrajBuilder(config, builder.target)


@register_trainer_adapter(config_type=ArtTrainerAdapterConfig)
async def openpipe_art_trainer_adapter(config: ArtTrainerAdapterConfig, builder: Builder) -> AsyncIterator[TrainerAdapter]:
    """Connect to the server and point the target model at its inference endpoint."""
    from nat_finetune_plugins.openpipe_art.adapter import connected

    async with connected(config, builder) as adapter:
        yield adapter


@register_trainer(config_type=ArtTrainerConfig)
async def openpipe_art_trainer(config: ArtTrainerConfig, builder: Builder) -> AsyncIterator[Trainer]:
    """Make the trainer."""
    yield ArtTrainer()
