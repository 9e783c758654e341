"""Base classes of component configs, and the types of references between entries of a config.

A component is a config class plus a factory (see `nat_finetune.registry`). The config class says, without loading anything
heavy, what the component makes and needs: `compose` holds these declarations against each other before a model is loaded.
Class names and the `name=` keyword follow NeMo Agent Toolkit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from nat_finetune.data.selection import SelectionRules
from nat_finetune.errors import Problem
from nat_finetune.types import SamplingParams

ItemKind = Literal["group", "pair", "demonstration"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Marks a string field as the name of an entry in another section of the config."""

    section: str
    also: tuple[str, ...] = ()
    """Names that are fine without being entries."""


@dataclass(frozen=True, slots=True)
class InputPath:
    """Marks a string field as a file or folder that is read: relative to the config file that names it."""

    only_if_path_like: bool = False
    """The value may also be something else (a hub id): a path only if it begins with `./`, `../`, `/` or `~/`, or ends in
    `.gguf`."""


def _named(value: Any) -> Any:
    if value == "":
        raise ValueError("expected a path, found an empty text (`.` is the working directory)")
    return value


Text = Annotated[str, Field(min_length=1)]
"""A text that says something: the empty one of an unset variable would mean whatever comes of it."""
FilePath = Annotated[Text, InputPath()]
ModelSource = Annotated[Text, InputPath(only_if_path_like=True)]
OutputPath = Annotated[Path, BeforeValidator(_named)]
"""A file or folder that is written: relative to the working directory."""
LLMRef = Annotated[str, Reference("llms")]
FunctionRef = Annotated[str, Reference("functions")]
TTCStrategyRef = Annotated[str, Reference("ttc_strategies")]
EvaluatorRef = Annotated[str, Reference("evaluators")]


def _accepted_types(annotation: Any) -> set[Any]:
    """The types that an annotation is made of, outside of containers."""
    arguments = get_args(annotation)
    if not arguments or isinstance(annotation, type):
        return {annotation}
    if get_origin(annotation) is Literal:
        return {type(argument) for argument in arguments}
    if get_origin(annotation) in (list, dict, tuple, set, frozenset):
        return set()
    return set().union(*(_accepted_types(argument) for argument in arguments))


class Section(BaseModel):
    """A block of the YAML file: unknown keys are refused, values don't change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), ser_json_inf_nan="constants", allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, data: Any) -> Any:
        """Keep pydantic from reading a boolean as 0 or 1: `num_epochs: true` is a mistake, not an epoch.

        Handed on as a text, it fails where a number is wanted. (A validator of each field would do, but pydantic has none of
        those on the discriminator of a union.)
        """
        if not isinstance(data, Mapping):
            return data
        checked = dict(data)
        for name, field in cls.model_fields.items():
            for key in {name, field.alias} & checked.keys():
                accepted = _accepted_types(field.annotation)
                if isinstance(checked[key], bool) and accepted & {int, float} and not accepted & {bool, object, Any}:
                    checked[key] = str(checked[key]).lower()
        return checked


class ComponentConfig(Section):
    """Base of all component configs; `class X(SomeBase, name="x")` is addressed in YAML as `_type: x`."""

    component_name: ClassVar[str] = ""
    component_version: ClassVar[int] = 1
    """Goes up with every change of meaning of the component's keys."""

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is not None:
            cls.component_name = name


class LLMBaseConfig(ComponentConfig):
    """Config of an entry of `llms`."""

    returns_token_ids: ClassVar[bool] = False
    """Whether every call records prompt ids, sampled ids and their logprobs, however it is configured."""
    trainable_locally: ClassVar[bool] = False
    """Whether `local_trainer_adapter` can update this model's weights."""

    def records_token_ids(self) -> bool:
        """Whether calls record token ids and logprobs under this config: what token-level training needs."""
        return self.returns_token_ids

    def records_logprobs(self) -> bool:
        """Whether calls record at least the logprobs of what was sampled: enough where the backend renders the prompts."""
        return self.records_token_ids()

    def truncating_sampling(self) -> tuple[str, ...]:
        """Names of the sampling settings in force (top_p, ...) under which recorded logprobs are not the model's."""
        return ()

    def sampling(self) -> SamplingParams | None:
        """The sampling parameters of a call that names none; None: not known."""
        return None

    def samples_by_seed(self) -> bool:
        """Whether each call should be given a seed of its own, derived from its rollout's."""
        return self.records_token_ids()


class FunctionBaseConfig(ComponentConfig):
    """Config of an entry of `functions`, or of `workflow`."""

    def candidate_steps(self) -> frozenset[str]:
        """Step names under which this function itself emits scored candidates."""
        return frozenset()


class TTCStrategyBaseConfig(ComponentConfig):
    """Config of an entry of `ttc_strategies`."""

    def candidate_steps(self) -> frozenset[str]:
        """Step names under which this strategy emits scored candidates."""
        return frozenset()


class EvaluatorBaseConfig(ComponentConfig):
    """Config of an entry of `eval.evaluators`."""

    def compares_rollouts(self) -> bool:
        """Whether scores only say how the rollouts of one example compare: their mean says nothing of a policy."""
        return False


class EvalDatasetBaseConfig(ComponentConfig):
    """Config of a dataset: `eval.general.dataset`, `finetuning.validation.dataset`, ..."""

    gives_records: ClassVar[bool] = False
    """Whether its loader can give rows as they are written (`interfaces.RecordLoader`)."""


class TrajectoryBuilderConfig(ComponentConfig):
    """Config of an entry of `trajectory_builders`."""

    makes: ClassVar[ItemKind]
    token_level: ClassVar[bool] = False
    """Whether its items carry sampled token ids and logprobs, and so can't be built from text."""
    keeps_calls: ClassVar[bool] = False
    """Whether its trajectories carry the calls themselves (`Trajectory.calls`), and need no ids of prompts."""

    @property
    def generations(self) -> int:
        """Rollouts that it needs of each example."""
        return 1

    def candidate_step(self) -> str | None:
        """Name of the candidate step that it reads, None if it reads none."""
        return None

    def record_dataset(self) -> EvalDatasetBaseConfig | None:
        """The dataset whose records it trains on, None where it builds from rollouts of the workflow."""
        return None


class TrainerAdapterConfig(ComponentConfig):
    """Config of an entry of `trainer_adapters`."""

    needs_local_model: ClassVar[bool] = False
    remote: ClassVar[bool] = False
    """Whether its jobs outlive this process (`remote.interfaces.RemoteAdapter`)."""
    serves_target: ClassVar[bool] = False
    """Whether it points the target model at an endpoint of its own before anything is sampled, whatever the config says."""
    needs_calls: ClassVar[bool] = False
    """Whether it reads messages beside tokens: it takes only what a builder that `keeps_calls` makes."""
    starts_from_base: ClassVar[bool] = False
    """Whether every update starts at the base model: it can't go on with what an earlier one made."""
    weighs_items: ClassVar[bool] = True
    """Whether items can count differently."""
    keeps_weights: ClassVar[bool] = False
    """Whether it can imitate the chosen completions of pairs, hold preferences against the policy of an earlier round, and
    score pairs that are held out (`interfaces.PairScorer`)."""

    def takes(self) -> frozenset[ItemKind]:
        """Kinds of items that it can train on, under this config."""
        raise TypeError(f"{type(self).__name__} must say which items it takes")

    def resolved_algorithm(self) -> dict[str, Any]:
        """Every choice of the update, named sets of choices resolved; empty where there is none to show."""
        return {}

    def compares_rewards_apart(self) -> bool:
        """Whether each reward gets an advantage of its own (GDPO) instead of their weighted sum getting one."""
        return False

    def sampling_temperature(self) -> float | None:
        """Of a backend that samples at one temperature, whatever the calls ask for; None: at that of the calls."""
        return None

    def lacks(self) -> Problem | None:
        """What the backend needs of this machine and is not there, as far as its files tell; the key is one of this entry's.

        `doctor` makes an error of it and `validate` a note, for the run may be elsewhere.
        """
        return None

    def runs_rollouts(self) -> bool:
        """Whether the backend runs the rollouts itself, under this config, and is handed the whole training."""
        return False


class TrainerConfig(ComponentConfig):
    """Config of an entry of `trainers`."""

    fits: ClassVar[frozenset[ItemKind]]
    """Kinds of items that this order of steps makes sense for."""
    unhonoured: ClassVar[frozenset[str]] = frozenset()
    """Keys of `finetuning` that this trainer does not honour: refused when set."""
    hands_over: ClassVar[bool] = False
    """Whether it leaves the order of steps, and the rollouts, to the backend."""
    takes_records: ClassVar[bool] = False
    """Whether its order makes sense where a builder reads records: nothing is collected, all items are there at once."""
    of_pairs: ClassVar[frozenset[str]] = frozenset()
    """Keys of its own that are about preference pairs: refused when set where the items are others."""
    unused_with_records: ClassVar[frozenset[str]] = frozenset()
    """Keys of its own that mean nothing then: refused when set."""

    def makes_one_update(self, num_epochs: int) -> bool:
        """Whether a run makes a single update, under this config and that `finetuning.num_epochs`."""
        return False

    def needs_kept_weights(self) -> tuple[str, ...]:
        """Keys in use that need preference pairs and an adapter that `keeps_weights`."""
        return ()

    def detaches(self) -> bool:
        """Whether the run ends with `Detached` once a job is submitted: only where the adapter's jobs are `remote`."""
        return False

    def selection_rules(self) -> SelectionRules:
        """Which preference pairs of a collection it trains, and how much each counts."""
        return SelectionRules()
