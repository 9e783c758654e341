"""Does the order of steps fit what the backend can do with it? A part of `config.fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nat_finetune.config.chosen import adapter_of, builder_of, target_llm_of, trainer_of
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import Problem

_GENERATIONS = "num_generations"
"""All that a backend which runs the rollouts itself takes from a builder."""
_OF_STEPS = ("interval", "interval_steps", "select", "patience")
"""Keys of `finetuning.validation` that are about the time between steps."""


def _handed_over(config: RunConfig) -> Iterator[Problem]:
    """Who runs the rollouts: the run, or the backend, and what then would be ignored."""
    builder, adapter, trainer, finetuning = builder_of(config), adapter_of(config), trainer_of(config), config.finetuning
    if adapter is None or trainer is None or builder is None:
        return
    backend = f"trainer_adapters.{finetuning.trainer_adapter} (`_type: {adapter.component_name}`)"
    if trainer.hands_over != adapter.runs_rollouts():
        runs = "runs the rollouts itself" if adapter.runs_rollouts() else "does not run rollouts"
        hint = "use `_type: backend_trainer`" if adapter.runs_rollouts() else "use `_type: on_policy_trainer`"
        message = f"`_type: {trainer.component_name}` does not fit: {backend}, as it is configured, {runs}"
        yield Problem(message, key="finetuning.trainer", hint=hint)
    if not trainer.hands_over:
        return
    for key in sorted(builder.model_fields_set - {_GENERATIONS}):
        if getattr(builder, key) != type(builder).model_fields[key].default:
            message = f"would be ignored: {backend} runs the rollouts itself and takes only {_GENERATIONS} from the builder"
            yield Problem(message, key=f"trajectory_builders.{finetuning.trajectory_builder}.{key}", hint="leave it out")
    validation = finetuning.validation
    for key in _OF_STEPS if validation is not None else ():
        if validation is not None and key in validation.model_fields_set:
            message = f"would be ignored: {backend} trains in one job, so there is nothing to validate before its end"
            yield Problem(message, key=f"finetuning.validation.{key}", hint="leave it out")


def _temperature(config: RunConfig) -> Iterator[Problem]:
    """A backend that samples at one temperature and takes log-probabilities at it, and calls that ask for another."""
    adapter, (name, llm) = adapter_of(config), target_llm_of(config)
    wanted = None if adapter is None else adapter.sampling_temperature()
    sampling = None if llm is None else llm.sampling()
    if adapter is None or wanted is None or sampling is None or sampling.temperature == wanted:
        return
    yield Problem(
        f"calls would be asked for at temperature {sampling.temperature:g}, and trainer_adapters."
        f"{config.finetuning.trainer_adapter} (`_type: {adapter.component_name}`) samples and trains at {wanted:g}",
        key=f"llms.{name}.temperature",
        hint="set both to the same",
    )


def _one_update(config: RunConfig) -> Iterator[Problem]:
    """A backend that starts every update at the base model can make one, or the last would be all that there is."""
    adapter, trainer, finetuning = adapter_of(config), trainer_of(config), config.finetuning
    if adapter is None or trainer is None or not adapter.starts_from_base or trainer.makes_one_update(finetuning.num_epochs):
        return
    yield Problem(
        f"`_type: {adapter.component_name}` starts every update at the base model, and trainers.{finetuning.trainer} "
        f"(`_type: {trainer.component_name}`) makes several: only the last would count",
        key="finetuning.trainer",
        hint="use a trainer that makes one: preference_trainer with num_rounds 1 and num_epochs 1, or the backend's own",
    )


def _weights(config: RunConfig) -> Iterator[Problem]:
    """Scored pairs are weighed by their candidate set unless the trainer says otherwise; not every backend can."""
    builder, adapter, trainer = builder_of(config), adapter_of(config), trainer_of(config)
    if builder is None or adapter is None or trainer is None or adapter.weighs_items or builder.makes != "pair":
        return
    if builder.record_dataset() is None and trainer.selection_rules().weighting != "pair":
        yield Problem(
            f"pairs of large candidate sets would count less, which `_type: {adapter.component_name}` can't honour",
            key=f"trainers.{config.finetuning.trainer}.pair_weighting",
            hint="set it to pair",
        )


def _detaching(config: RunConfig) -> Iterator[Problem]:
    adapter, trainer = adapter_of(config), trainer_of(config)
    if adapter is not None and trainer is not None and trainer.detaches() and not adapter.remote:
        yield Problem(
            f"trainers.{config.finetuning.trainer} does not wait for its job, and a job of "
            f"`_type: {adapter.component_name}` ends with this process",
            key=f"trainers.{config.finetuning.trainer}",
            hint="wait for it, or use an adapter whose jobs run elsewhere",
        )


def _pair_filters(config: RunConfig) -> Iterator[Problem]:
    """What a trainer filters and weighs are preference pairs."""
    builder, trainer = builder_of(config), trainer_of(config)
    if builder is None or trainer is None or builder.makes == "pair":
        return
    for key in sorted(trainer.of_pairs & trainer.model_fields_set):
        yield Problem(
            f"would be ignored: it is about preference pairs, and `_type: {builder.component_name}` makes {builder.makes}s",
            key=f"trainers.{config.finetuning.trainer}.{key}",
            hint="leave it out",
        )


CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _handed_over,
    _temperature,
    _one_update,
    _weights,
    _pair_filters,
    _detaching,
)
