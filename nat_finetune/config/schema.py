"""The YAML file as types: sections, keys, defaults and ranges, in NeMo Agent Toolkit's (NAT's) words.

Entries of `llms`, `functions`, ... are validated by the config class that the registry has for their `_type`. What differs
from NAT on purpose: unknown keys are refused, references are checked (`config.references`), and `finetuning.output_dir` is
`runs` by default. Loading from a file, with places in every message, is `config.load`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, ValidationInfo, model_validator
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from nat_finetune.config.component import (
    ComponentConfig,
    EvalDatasetBaseConfig,
    EvaluatorBaseConfig,
    EvaluatorRef,
    FilePath,
    FunctionBaseConfig,
    LLMBaseConfig,
    LLMRef,
    OutputPath,
    Reference,
    Section,
    TrainerAdapterConfig,
    TrainerConfig,
    TrajectoryBuilderConfig,
    TTCStrategyBaseConfig,
)
from nat_finetune.config.signal import CalibrationConfig, CurriculumLearningConfig, DynamicSamplingConfig
from nat_finetune.errors import Problem
from nat_finetune.registry import Kind, Registry

CONFIG_VERSION = 1
WORKFLOW = "<workflow>"
"""The workflow's name among functions."""
COMPONENT_OF = "x-component-of"
"""Key of a JSON schema under which a slot says its kind, for `config.json_schema`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Marks a field whose value is a component: `_type` says by which class the rest is validated."""

    kind: Kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate through the registry that `RunConfig.read` passes in."""
        return core_schema.with_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Say which kind of component stands here; the components are not known yet."""
        return {COMPONENT_OF: self.kind.value}

    def config_type(self, entry: Mapping[str, Any], registry: Registry) -> type[ComponentConfig] | Problem:
        """The config class that an entry's `_type` (or NAT's other spelling, `type`) names."""
        name = entry.get(type_key(entry))
        if not isinstance(name, str):
            return self._without_type(name, registry)
        if name not in registry.names(self.kind):
            return registry.not_found(self.kind, name)
        return registry.get(self.kind, name).config_type

    def _without_type(self, name: Any, registry: Registry) -> Problem:
        known = ", ".join(registry.names(self.kind)) or "none is installed"
        message = "`_type` is missing: it says which component this is" if name is None else "`_type` must be a text"
        return Problem(message, hint=f"known: {known}")

    def _validate(self, value: Any, info: ValidationInfo) -> ComponentConfig:
        if isinstance(value, ComponentConfig):
            return value
        if not isinstance(value, Mapping):
            raise PydanticCustomError("component_type", "expected a mapping with a `_type`")
        registry = cast("Mapping[str, Registry]", info.context)["registry"]
        config_type = self.config_type(value, registry)
        if isinstance(config_type, Problem):
            context = {"message": config_type.message, "hint": config_type.hint or ""}
            error = PydanticCustomError("component_not_found", "{message}", context)
            at = (type_key(value),) if type_key(value) in value else ()
            raise ValidationError.from_exception_data(self.kind, [InitErrorDetails(type=error, loc=at, input=None)])
        fields = {key: item for key, item in value.items() if key != type_key(value)}
        return config_type.model_validate(fields, context=info.context)


def type_key(entry: Mapping[str, Any]) -> str:
    """The key under which an entry says its type."""
    return "type" if "_type" not in entry and "type" in entry else "_type"


AnyLLM = Annotated[LLMBaseConfig, Slot(Kind.LLM)]
AnyFunction = Annotated[FunctionBaseConfig, Slot(Kind.FUNCTION)]
AnyTTCStrategy = Annotated[TTCStrategyBaseConfig, Slot(Kind.TTC_STRATEGY)]
AnyDataset = Annotated[EvalDatasetBaseConfig, Slot(Kind.DATASET)]
AnyEvaluator = Annotated[EvaluatorBaseConfig, Slot(Kind.EVALUATOR)]
AnyTrajectoryBuilder = Annotated[TrajectoryBuilderConfig, Slot(Kind.TRAJECTORY_BUILDER)]
AnyTrainerAdapter = Annotated[TrainerAdapterConfig, Slot(Kind.TRAINER_ADAPTER)]
AnyTrainer = Annotated[TrainerConfig, Slot(Kind.TRAINER)]

PAIR_METRICS = ("preference_accuracy", "preference_reward_accuracy")
"""Metrics of held-out preference pairs; no evaluator makes them."""

MetricRef = Annotated[str, Reference("evaluators", also=PAIR_METRICS)]
TargetFunction = Annotated[str, Reference("functions", also=(WORKFLOW,))]


class EvalGeneralConfig(Section):
    """`eval.general`."""

    max_concurrency: int = Field(8, ge=1)
    """Rollouts that run at once."""
    dataset: AnyDataset | None = None
    """The examples to train on, or to evaluate on with `nat-finetune eval`."""


class EvalConfig(Section):
    """`eval`."""

    general: EvalGeneralConfig = EvalGeneralConfig()
    evaluators: dict[str, AnyEvaluator] = Field(default_factory=dict)


class RewardFunctionConfig(Section):
    """`finetuning.reward_function`."""

    name: EvaluatorRef
    """The evaluator whose score is the reward."""


class RewardConditionConfig(Section):
    """`condition` of a reward: it is paid only where another score is high enough."""

    requires: EvaluatorRef
    """The evaluator whose score decides."""
    at_least: float
    """The lowest score at which the reward is paid."""
    otherwise: float = 0.0
    """What is paid below that."""


class WeightedRewardConfig(Section):
    """An element of `finetuning.reward_functions`."""

    name: EvaluatorRef
    """The evaluator whose score is this reward."""
    weight: float = 1.0
    """Under `algorithm.advantage: gdpo` the reward's priority, whatever its range; else its factor in the weighted sum."""
    condition: RewardConditionConfig | None = None
    """Pay it only where another score is high enough."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.weight == 0:
            raise ValueError("weight must not be 0: a score that is only looked at belongs in finetuning.watch")
        if self.condition is not None and self.condition.requires == self.name:
            raise ValueError(f"condition.requires must be another evaluator than {self.name!r} itself")
        return self


class EvaluationConfig(Section):
    """`finetuning.test`: held-out examples, evaluated once before and once after training."""

    dataset: AnyDataset | None = None
    """Null: the share that `finetuning.split` takes of `eval.general.dataset`."""
    records: AnyDataset | None = None
    """Held-out preference records, where the builder trains on such: it reads them as it reads its own."""
    metrics: list[MetricRef] | None = Field(None, min_length=1)
    """Evaluators to report; null: the reward function, or all evaluators where there is none. Of held-out pairs
    `preference_accuracy` and `preference_reward_accuracy` are reported besides."""
    generations: int = Field(1, ge=1)
    """Rollouts of each example, for evaluators that need rollouts."""

    def names(self, default: Sequence[str]) -> tuple[str, ...]:
        """Evaluators to report; `default` where the config names none."""
        return tuple(self.metrics or default)


class ValidationConfig(EvaluationConfig):
    """`finetuning.validation`: held-out examples that are looked at during training."""

    interval: int = Field(5, ge=1)
    """Epochs from one validation to the next; the start and the last step are always validated."""
    interval_steps: int | None = Field(None, ge=1)
    """Also after so many steps, where an epoch is long."""
    select: MetricRef | None = None
    """The metric that chooses the run's result among the validated checkpoints; null: the last checkpoint is the result."""
    mode: Literal["max", "min"] = "max"
    """Whether the highest or the lowest value of `select` is best."""
    patience: int | None = Field(None, ge=1)
    """Validations in a row without a better value of `select` that end the training; null: it goes on to its end."""

    @model_validator(mode="after")
    def _select_is_used(self) -> Self:
        ignored = [name for name in ("mode", "patience") if name in self.model_fields_set]
        if self.select is None and ignored:
            raise PydanticCustomError(
                "ignored", "{names} would be ignored: select names no metric", {"names": " and ".join(ignored)}
            )
        return self

    def names(self, default: Sequence[str]) -> tuple[str, ...]:
        """Evaluators to report, with the one that selects."""
        names = super().names(default)
        return names if self.select is None or self.select in names else (*names, self.select)


class SplitConfig(Section):
    """`finetuning.split`: held-out parts of what is trained on (examples, or records), and what counts as a leak."""

    validation: float = Field(0.0, ge=0, lt=1)
    """Share of the examples."""
    test: float = Field(0.0, ge=0, lt=1)
    """Share of the examples."""
    by: Literal["near_duplicates", "task_key"] = "near_duplicates"
    """What belongs together: equal task keys and equal inputs; of rows without a task key also near-duplicates."""
    threshold: float = Field(0.5, gt=0, le=1)
    """Similarity from which two inputs are near-duplicates (docs/config.md)."""
    manifest: FilePath | None = None
    """`split.json` of an earlier run: its examples keep their sides."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.validation + self.test >= 1:
            raise PydanticCustomError("shares", "validation and test leave nothing to train on")
        if self.by == "task_key" and "threshold" in self.model_fields_set:
            raise PydanticCustomError("ignored", "threshold would be ignored: by: task_key compares no texts")
        if self.manifest is not None and not self.validation + self.test:
            raise PydanticCustomError("ignored", "manifest would be ignored: neither validation nor test has a share")
        return self


class FinetuningConfig(Section):
    """`finetuning`: the block that ties a run together."""

    enabled: bool = False
    trainer: Annotated[str, Reference("trainers")] | None = None
    trajectory_builder: Annotated[str, Reference("trajectory_builders")] | None = None
    trainer_adapter: Annotated[str, Reference("trainer_adapters")] | None = None
    reward_function: RewardFunctionConfig | None = None
    """The reward, where there is one."""
    reward_functions: list[WeightedRewardConfig] | None = Field(None, min_length=1)
    """Several rewards, in place of `reward_function`."""
    watch: list[EvaluatorRef] = Field([])
    """Further evaluators that score every training rollout; they are logged and never trained."""
    target_functions: list[TargetFunction] = Field([WORKFLOW], min_length=1)
    """Calls made inside these functions are trained; everything else is recorded and masked."""
    target_model: LLMRef | None = None
    """The entry of `llms` that is trained; may be left out where there is just one."""
    num_epochs: int = Field(1, ge=1)
    """Passes over the dataset."""
    examples_per_step: int | None = Field(None, ge=1)
    """Examples whose rollouts make one update; null: the whole dataset."""
    failure_reward: float | None = None
    """Reward of a rollout that the policy made fail; null: what the evaluator says of it."""
    max_failure_rate: float = Field(0.1, ge=0, le=1)
    """Share of a step's rollouts that may fail for reasons other than the policy before the run stops."""
    rollout_timeout_seconds: float | None = Field(1800.0, gt=0)
    rollout_retries: int = Field(1, ge=0)
    """Further attempts after a failure of the infrastructure."""
    max_unscored_rate: float = Field(0.1, ge=0, le=1)
    """Share of a step's rollouts that may have no reward, because an evaluator failed or gave None, before the run stops."""
    calibration: CalibrationConfig = CalibrationConfig()
    curriculum_learning: CurriculumLearningConfig = CurriculumLearningConfig()
    dynamic_sampling: DynamicSamplingConfig | None = None
    """Refill flat groups from further examples; null: a step trains on what its own examples give."""
    flat_patience: int = Field(3, ge=1)
    """Steps in a row without anything to train on that end the run."""
    validation: ValidationConfig | None = None
    test: EvaluationConfig | None = None
    split: SplitConfig | None = None
    """Parts of `eval.general.dataset`, or of the records that the builder trains on, in place of datasets of their own."""
    allow_leakage: bool = False
    """Go on where held-out examples leak into training; the report says so."""
    seed: int = Field(0, ge=0, lt=2**63)
    deterministic: bool = False
    """Same seed, same bits (on CPU), also across a resume; slower."""
    output_dir: OutputPath = Path("runs")
    """Where run folders go, relative to the working directory."""
    checkpoint_interval: int = Field(1, ge=1)
    """Steps from one checkpoint to the next."""
    keep_checkpoints: int = Field(1, ge=1)
    """Checkpoints to keep, the newest ones; the best one (`validation.select`) is always kept."""
    confidence: float = Field(0.95, gt=0, lt=1)
    """Level of all intervals in the report."""

    @model_validator(mode="before")
    @classmethod
    def _split_is_evaluated(cls, data: Any) -> Any:
        """A share is held out to be evaluated: `validation` and `test` may be left out where there is one."""
        split = data.get("split") if isinstance(data, Mapping) else None
        if not isinstance(split, Mapping):
            return data
        return {**data, **{side: {} for side in ("validation", "test") if split.get(side) and data.get(side) is None}}

    @model_validator(mode="after")
    def _held_out_once(self) -> Self:
        """What is held out comes from a dataset of its own or from the split; a dataset of examples may stand beside pairs."""
        split = self.split or SplitConfig()
        for side, settings, share in (("validation", self.validation, split.validation), ("test", self.test, split.test)):
            if settings is None:
                continue
            if share and settings.records is not None:
                found, give = "both records and a share of the split", f"{side}.records"
            elif not share and settings.records is None and settings.dataset is None:
                found, give = "no dataset and no share of the split", f"{side}.dataset"
            else:
                continue
            raise PydanticCustomError(
                "held_out",
                "{side} has {found}: give one, {give} or split.{side}",
                {"side": side, "found": found, "give": give},
            )
        return self

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = ("trainer", "trajectory_builder", "trainer_adapter")
        missing = [name for name in names if getattr(self, name) is None]
        if self.enabled and missing:
            raise PydanticCustomError("incomplete", "enabled, but {names} not set", {"names": " and ".join(missing)})
        return self

    @model_validator(mode="after")
    def _one_list_of_rewards(self) -> Self:
        if self.reward_function is not None and self.reward_functions is not None:
            raise PydanticCustomError("two_rewards", "reward_function and reward_functions are both set: give one of them")
        trained = [reward.name for reward in self.rewards]
        twice = sorted({name for name in trained if trained.count(name) > 1})
        if twice:
            raise PydanticCustomError("twice", "reward_functions names {names} twice", {"names": ", ".join(twice)})
        watched = sorted(set(self.watch) & set(trained))
        if watched:
            raise PydanticCustomError(
                "watched", "watch names {names}, a reward: it is logged anyway", {"names": ", ".join(watched)}
            )
        return self

    @property
    def rewards(self) -> list[WeightedRewardConfig]:
        """The trained rewards, whichever key names them."""
        if self.reward_function is not None:
            return [WeightedRewardConfig(name=self.reward_function.name)]
        return list(self.reward_functions or ())


class RunConfig(Section):
    """A whole config file."""

    config_version: int | None = None
    """1; absent: NAT's own schema, which this one extends."""
    llms: dict[str, AnyLLM] = Field(default_factory=dict)
    functions: dict[str, AnyFunction] = Field(default_factory=dict)
    workflow: AnyFunction | None = None
    ttc_strategies: dict[str, AnyTTCStrategy] = Field(default_factory=dict)
    eval: EvalConfig = EvalConfig()
    trajectory_builders: dict[str, AnyTrajectoryBuilder] = Field(default_factory=dict)
    trainer_adapters: dict[str, AnyTrainerAdapter] = Field(default_factory=dict)
    trainers: dict[str, AnyTrainer] = Field(default_factory=dict)
    finetuning: FinetuningConfig = FinetuningConfig()
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Free notes of whoever owns the config: they go into the report."""

    @classmethod
    def read(cls, data: Mapping[str, Any], registry: Registry) -> RunConfig:
        """Validate plain data.

        Raises:
            pydantic.ValidationError: with all errors; `config.load.load_config` turns them into problems with places.
        """
        return cls.model_validate(data, context={"registry": registry})

    @model_validator(mode="before")
    @classmethod
    def _empty_section_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data
