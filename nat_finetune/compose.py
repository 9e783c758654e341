"""From a checked config to live components: each entry made once, on first use, and closed when the run ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nat_finetune.config.component import ComponentConfig, EvalDatasetBaseConfig
from nat_finetune.config.fit import check_fit
from nat_finetune.config.schema import WORKFLOW, RunConfig, WeightedRewardConfig
from nat_finetune.data.keys import require_unique
from nat_finetune.errors import BackendError, ConfigError, DataError, Problem, Stage, StageError, boundary
from nat_finetune.interfaces import Evaluator, RecordBuilder, RecordLoader, Trainer, TrainerAdapter, TrajectoryBuilder
from nat_finetune.live import LiveComponent
from nat_finetune.records import RecordSource
from nat_finetune.registry import Kind, Registry
from nat_finetune.tracing.traced import TracedChatModel, TracedFunction
from nat_finetune.types import Example, RewardCondition, RewardTerm, Target

if TYPE_CHECKING:
    from nat_finetune.local.policy import LocalPolicy


class Composition:
    """The live components of one config; what factories see as `interfaces.Builder`."""

    def __init__(self, config: RunConfig, registry: Registry, stack: AsyncExitStack, folder: Path | None = None) -> None:
        self._folder = folder
        self._config = config
        self._registry = registry
        self._stack = stack
        self._made: dict[tuple[Kind, str], Any] = {}
        self._making: list[tuple[Kind, str]] = []

    @property
    def entry_name(self) -> str:
        """Name of the config's entry that is being made."""
        return self._making[-1][1]

    @property
    def target(self) -> Target:
        """What this run trains."""
        return target_of(self._config)

    @property
    def seed(self) -> int:
        """`finetuning.seed`."""
        return self._config.finetuning.seed

    @property
    def folder(self) -> Path | None:
        """The run folder; None where nothing is trained."""
        return self._folder

    @property
    def deterministic(self) -> bool:
        """`finetuning.deterministic`."""
        return self._config.finetuning.deterministic

    async def get_llm(self, name: str) -> TracedChatModel:
        """An entry of `llms`, its calls recorded."""
        config = self._entry(Kind.LLM, self._config.llms, name)

        async def traced() -> TracedChatModel:
            inner = await self._factory(Kind.LLM, config)
            return TracedChatModel(inner, seeded=config.samples_by_seed())

        made: TracedChatModel = await self._once(Kind.LLM, name, traced)
        return made

    async def get_function(self, name: str) -> TracedFunction:
        """An entry of `functions`, its calls recorded under its name."""
        config = self._entry(Kind.FUNCTION, self._config.functions, name)
        return await self._function(name, config)

    async def get_workflow(self) -> TracedFunction:
        """The workflow, as a function named `<workflow>`."""
        if self._config.workflow is None:
            raise ConfigError(Problem("there is no workflow to run", key="workflow"))
        adapter = self._config.trainer_adapters.get(self._config.finetuning.trainer_adapter or "")
        if adapter is not None and adapter.serves_target:
            await self.get_trainer_adapter()
        return await self._function(WORKFLOW, self._config.workflow)

    async def get_ttc_strategy(self, name: str) -> Any:
        """An entry of `ttc_strategies`."""
        config = self._entry(Kind.TTC_STRATEGY, self._config.ttc_strategies, name)
        return await self._once(Kind.TTC_STRATEGY, name, lambda: self._factory(Kind.TTC_STRATEGY, config))

    async def get_evaluator(self, name: str) -> Evaluator:
        """An entry of `eval.evaluators`."""
        config = self._entry(Kind.EVALUATOR, self._config.eval.evaluators, name)
        evaluator: Evaluator = await self._once(Kind.EVALUATOR, name, lambda: self._factory(Kind.EVALUATOR, config))
        return evaluator

    async def get_policy(self) -> LocalPolicy:
        """The weights of the target model.

        Raises:
            BackendError: the target model is not a local one.
        """
        from nat_finetune.local.policy import LocalPolicy

        policies = [policy for name, policy in await self._policies() if name == self.target.llm]
        if not policies or not isinstance(policies[0], LocalPolicy):
            raise BackendError(f"llms.{self.target.llm} is not `_type: local`: its weights are out of reach of this process")
        return policies[0]

    async def get_trajectory_builder(self) -> TrajectoryBuilder:
        """The trajectory builder that `finetuning` names."""
        made: TrajectoryBuilder = await self._trajectory_builder()
        return made

    async def get_records(self) -> RecordSource | None:
        """The records that the trajectory builder trains on; None where it builds from rollouts."""
        dataset = record_dataset_of(self._config)
        key = f"trajectory_builders.{self._config.finetuning.trajectory_builder}.dataset"
        return None if dataset is None else await self.get_records_of(dataset, key)

    async def get_records_of(self, dataset: EvalDatasetBaseConfig, key: str) -> RecordSource:
        """The records of any dataset, `key` in the config, as the trajectory builder reads them.

        Raises:
            ConfigError: it gives examples.
        """
        builder: RecordBuilder = await self._trajectory_builder()
        loader = await self._loader(dataset, key)
        if not isinstance(loader, RecordLoader):
            raise ConfigError(Problem(f"`_type: {dataset.component_name}` gives examples, not records", key=key))
        return RecordSource(loader, builder, key)

    async def _trajectory_builder(self) -> Any:
        name = self._config.finetuning.trajectory_builder
        config = self._entry(Kind.TRAJECTORY_BUILDER, self._config.trajectory_builders, name)
        return await self._once(Kind.TRAJECTORY_BUILDER, name, lambda: self._factory(Kind.TRAJECTORY_BUILDER, config))

    async def get_trainer_adapter(self) -> TrainerAdapter:
        """The trainer adapter that `finetuning` names."""
        name = self._config.finetuning.trainer_adapter
        config = self._entry(Kind.TRAINER_ADAPTER, self._config.trainer_adapters, name)
        made: TrainerAdapter = await self._once(Kind.TRAINER_ADAPTER, name, lambda: self._factory(Kind.TRAINER_ADAPTER, config))
        return made

    async def get_trainer(self) -> Trainer:
        """The trainer that `finetuning` names."""
        name = self._config.finetuning.trainer
        config = self._entry(Kind.TRAINER, self._config.trainers, name)
        made: Trainer = await self._once(Kind.TRAINER, name, lambda: self._factory(Kind.TRAINER, config))
        return made

    async def load_examples(self, config: ComponentConfig, key: str) -> list[Example]:
        """All examples of a dataset.

        Raises:
            DataError: there are none, or two have the same id.
        """
        loader = await self._loader(config, key)
        try:
            with boundary(Stage.WORKFLOW):
                examples = list(loader.load())
        except StageError as error:
            raise DataError(f"{key} (`_type: {config.component_name}`) failed: {error.error_type}: {error}") from error
        if not examples:
            raise DataError(f"{key}: the dataset has no examples")
        require_unique(example.id for example in examples)
        return examples

    async def _loader(self, config: ComponentConfig, key: str) -> Any:
        self._making.append((Kind.DATASET, key))
        try:
            return await self._factory(Kind.DATASET, config)
        finally:
            self._making.pop()

    @contextmanager
    def enter_rollout(self, rollout_id: str) -> Iterator[None]:
        """Held while a rollout runs: tells the engines of local models which rollouts may still ask for something."""
        engines = [
            model.inner.policy.engine
            for (kind, name), model in self._made.items()
            if kind is Kind.LLM and self._config.llms[name].trainable_locally
        ]
        with ExitStack() as stack:
            for engine in engines:
                engine.rollout_started(rollout_id)
                stack.callback(engine.rollout_ended, rollout_id)
            yield

    async def _policies(self) -> list[tuple[str, Any]]:
        await self.get_llm(self.target.llm)
        return [
            (name, model.inner.policy)
            for (kind, name), model in self._made.items()
            if kind is Kind.LLM and self._config.llms[name].trainable_locally
        ]

    def _entry(self, kind: Kind, section: Any, name: str | None) -> Any:
        if name is None or name not in section:
            known = ", ".join(section) or "none"
            raise ConfigError(Problem(f"{kind.value} has no entry {name!r}", key=kind.value, hint=f"known: {known}"))
        return section[name]

    async def _function(self, name: str, config: ComponentConfig) -> TracedFunction:
        async def traced() -> TracedFunction:
            return TracedFunction(name, await self._factory(Kind.FUNCTION, config))

        made: TracedFunction = await self._once(Kind.FUNCTION, name, traced)
        return made

    async def _once(self, kind: Kind, name: str | None, make: Callable[[], Awaitable[Any]]) -> Any:
        key = (kind, name or "")
        if key in self._made:
            return self._made[key]
        if key in self._making:
            chain = " → ".join(f"{k.value}.{n}" for k, n in [*self._making[self._making.index(key) :], key])
            raise ConfigError(f"components need one another in a circle: {chain}")
        self._making.append(key)
        try:
            self._made[key] = await make()
        finally:
            self._making.pop()
        return self._made[key]

    async def _factory(self, kind: Kind, config: ComponentConfig) -> Any:
        registration = self._registry.get(kind, config.component_name)
        return await self._stack.enter_async_context(LiveComponent(registration, self.entry_name, config, self))


def target_of(config: RunConfig) -> Target:
    """What a config trains: the target functions' calls of the target model (the only one, where none is named)."""
    finetuning = config.finetuning
    llm = finetuning.target_model or next(iter(config.llms), "")
    adapter = config.trainer_adapters.get(finetuning.trainer_adapter or "")
    return Target(
        functions=tuple(finetuning.target_functions),
        llm=llm,
        rewards=tuple(_term(reward) for reward in finetuning.rewards),
        rewards_apart=adapter is not None and adapter.compares_rewards_apart(),
    )


def _term(reward: WeightedRewardConfig) -> RewardTerm:
    asked = reward.condition
    condition = None if asked is None else RewardCondition(asked.requires, asked.at_least, asked.otherwise)
    return RewardTerm(reward.name, reward.weight, condition)


def record_dataset_of(config: RunConfig) -> EvalDatasetBaseConfig | None:
    """The dataset whose records the run's builder trains on, None where it builds from rollouts."""
    builder = config.trajectory_builders.get(config.finetuning.trajectory_builder or "")
    return None if builder is None else builder.record_dataset()


@asynccontextmanager
async def compose(config: RunConfig, registry: Registry, folder: Path | None = None) -> AsyncIterator[Composition]:
    """The components of a config, closed at the end; `folder` is that of the run.

    Raises:
        ConfigError: the parts do not fit together; all misfits at once, before anything heavy is loaded.
    """
    check_fit(config)
    async with AsyncExitStack() as stack:
        yield Composition(config, registry, stack, folder)
