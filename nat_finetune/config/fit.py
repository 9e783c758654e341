"""Do the parts of a config fit together? Asked of what their config classes declare, before anything is loaded or paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nat_finetune.config.backend_fit import CHECKS as backend_checks
from nat_finetune.config.chosen import adapter_of, builder_of, target_llm_of, trainer_of
from nat_finetune.config.held_out import HELD_OUT, clashes, evaluates_examples, metric_names, record_builder
from nat_finetune.config.held_out import misfits as held_out_misfits
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import ConfigError, Problem

_ITEMS = {"group": "groups", "pair": "preference pairs", "demonstration": "demonstrations"}


def check_fit(config: RunConfig) -> None:
    """Refuse a config whose parts can't work together.

    Raises:
        ConfigError: with all misfits.
    """
    problems = misfits(config)
    if problems:
        raise ConfigError(problems)


def resolved_algorithm(config: RunConfig) -> dict[str, Any]:
    """Every choice of the update that `finetuning` names, presets resolved."""
    adapter = adapter_of(config)
    return {} if adapter is None else adapter.resolved_algorithm()


def algorithm_line(chosen: Mapping[str, Any]) -> str:
    """The same in one line."""
    shown = ", ".join(f"{name} {_shown(value)}" for name, value in chosen.items() if name != "name")
    return f"{chosen.get('name', 'algorithm')}: {shown}"


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def misfits(config: RunConfig) -> list[Problem]:
    """What does not fit; where finetuning is not enabled, only of what an evaluation by itself needs."""
    checks = _CHECKS if config.finetuning.enabled else (clashes,)
    return [problem for check in checks for problem in check(config)]


def _needed(config: RunConfig) -> Iterator[Problem]:
    on_records = record_builder(config) is not None
    evaluated = [side for side in HELD_OUT if evaluates_examples(config, side)]
    if config.workflow is None and not on_records:
        yield Problem("finetuning needs a workflow to run", key="workflow")
    elif config.workflow is None and evaluated:
        yield Problem(f"finetuning.{' and finetuning.'.join(evaluated)} need a workflow to run", key="workflow")
    if config.eval.general.dataset is None and not on_records:
        yield Problem("finetuning needs examples to train on", key="eval.general.dataset")
    builder = builder_of(config)
    if builder is not None and builder.makes == "group" and not config.finetuning.rewards:
        known = ", ".join(config.eval.evaluators)
        yield Problem(
            f"`_type: {builder.component_name}` makes groups of rewarded rollouts, but there is no reward",
            key="finetuning.reward_function",
            hint=f"name an evaluator: {known}" if known else "add one to eval.evaluators and name it",
        )


_OF_COLLECTION = frozenset({"max_failure_rate", "flat_patience", "watch"})
"""Keys of `finetuning` that are about rollouts to train on: there are none where records are trained on."""

_OF_EVALUATION = frozenset(
    {"failure_reward", "rollout_timeout_seconds", "rollout_retries", "reward_function", "reward_functions"}
)
"""Keys of `finetuning` that are about any rollouts: where records are trained on, only an evaluation has some."""


def _records(config: RunConfig) -> Iterator[Problem]:
    """A builder that reads records: what would be ignored, and who can't train on them."""
    builder, trainer, finetuning = builder_of(config), trainer_of(config), config.finetuning
    dataset = builder.record_dataset() if builder is not None else None
    if builder is None or dataset is None:
        return
    name = finetuning.trajectory_builder
    reads = f"trajectory_builders.{name} (`_type: {builder.component_name}`) trains on the records of its own dataset"
    if not dataset.gives_records:
        message = f"`_type: {dataset.component_name}` gives examples, not records"
        yield Problem(message, key=f"trajectory_builders.{name}.dataset")
    for key in sorted(dataset.model_fields_set & {"structure"}):
        message = "would be ignored: `columns` and `format` of the builder say what the columns mean"
        yield Problem(message, key=f"trajectory_builders.{name}.dataset.{key}", hint="leave it out")
    if config.eval.general.dataset is not None:
        yield Problem(f"would be ignored: {reads}", key="eval.general.dataset", hint="leave it out")
    if trainer is not None and not trainer.takes_records:
        message = f"`_type: {trainer.component_name}` collects rollouts step by step, but {reads}"
        yield Problem(message, key="finetuning.trainer", hint="use `_type: preference_trainer`")
    elif trainer is not None:
        for key in sorted(trainer.unused_with_records & trainer.model_fields_set):
            yield Problem(f"would be ignored: {reads}", key=f"trainers.{finetuning.trainer}.{key}", hint="leave it out")
    evaluated = any(evaluates_examples(config, side) for side in HELD_OUT)
    ignored = _OF_COLLECTION if evaluated else _OF_COLLECTION | _OF_EVALUATION
    for key in sorted(finetuning.model_fields_set & ignored):
        nothing = "" if key in _OF_COLLECTION else ", and there is no validation or test that runs the workflow"
        yield Problem(f"would be ignored: {reads}{nothing}", key=f"finetuning.{key}", hint="leave it out")


def _target(config: RunConfig) -> Iterator[Problem]:
    if config.finetuning.target_model is None and len(config.llms) != 1:
        known = ", ".join(config.llms)
        message = f"there are {len(config.llms)} llms: say which one is trained" if config.llms else "there is no llm to train"
        yield Problem(message, key="finetuning.target_model", hint=f"one of {known}" if known else "add one to llms")


def _builder_and_adapter(config: RunConfig) -> Iterator[Problem]:
    builder, adapter = builder_of(config), adapter_of(config)
    if builder is None or adapter is None or builder.makes in adapter.takes():
        return
    takes = " or ".join(_ITEMS[kind] for kind in sorted(adapter.takes()))
    yield Problem(
        f"trajectory_builders.{config.finetuning.trajectory_builder} (`_type: {builder.component_name}`) makes "
        f"{_ITEMS[builder.makes]}, trainer_adapters.{config.finetuning.trainer_adapter} "
        f"(`_type: {adapter.component_name}`) takes {takes} as it is configured",
        key="finetuning.trainer_adapter",
        hint=_combinations(config),
    )


def _calls(config: RunConfig) -> Iterator[Problem]:
    """A backend that reads messages needs a builder that keeps them."""
    builder, adapter = builder_of(config), adapter_of(config)
    if builder is None or adapter is None or not adapter.needs_calls or builder.keeps_calls:
        return
    fitting = [name for name, other in config.trajectory_builders.items() if other.keeps_calls]
    yield Problem(
        f"trainer_adapters.{config.finetuning.trainer_adapter} (`_type: {adapter.component_name}`) trains on messages, which "
        f"trajectory_builders.{config.finetuning.trajectory_builder} (`_type: {builder.component_name}`) does not keep",
        key="finetuning.trajectory_builder",
        hint=f"fits: {', '.join(fitting)}" if fitting else "use the builder that comes with the adapter",
    )


def _trainer_and_builder(config: RunConfig) -> Iterator[Problem]:
    builder, trainer = builder_of(config), trainer_of(config)
    if builder is None or trainer is None or builder.makes in trainer.fits:
        return
    fits = " or ".join(_ITEMS[kind] for kind in sorted(trainer.fits))
    yield Problem(
        f"trainers.{config.finetuning.trainer} (`_type: {trainer.component_name}`) is for {fits}, "
        f"trajectory_builders.{config.finetuning.trajectory_builder} makes {_ITEMS[builder.makes]}",
        key="finetuning.trainer",
        hint=_combinations(config),
    )


def _unhonoured(config: RunConfig) -> Iterator[Problem]:
    trainer = trainer_of(config)
    if trainer is None:
        return
    for key in sorted(trainer.unhonoured & config.finetuning.model_fields_set):
        yield Problem(
            f"trainers.{config.finetuning.trainer} (`_type: {trainer.component_name}`) does not honour it",
            key=f"finetuning.{key}",
            hint="leave it out",
        )


def _kept_weights(config: RunConfig) -> Iterator[Problem]:
    builder, adapter, trainer = builder_of(config), adapter_of(config), trainer_of(config)
    if builder is None or adapter is None or trainer is None or (builder.makes == "pair" and adapter.keeps_weights):
        return
    unfit = _ITEMS[builder.makes] if builder.makes != "pair" else f"`_type: {adapter.component_name}`"
    for key in trainer.needs_kept_weights():
        yield Problem(
            f"it needs preference pairs and an adapter that keeps the policy's weights, which {unfit} can't honour",
            key=f"trainers.{config.finetuning.trainer}.{key}",
            hint="leave it out, or use dpo_traj_builder with local_trainer_adapter",
        )


def _groups_only(config: RunConfig) -> Iterator[Problem]:
    """What compares or replaces groups needs groups, and examples outside the step to replace them by."""
    builder, finetuning = builder_of(config), config.finetuning
    asked = {
        "curriculum_learning": finetuning.curriculum_learning.enabled,
        "dynamic_sampling": finetuning.dynamic_sampling is not None,
    }
    if builder is not None and builder.makes != "group":
        message = f"it is about groups of rollouts, `_type: {builder.component_name}` makes {_ITEMS[builder.makes]}"
        for key in (key for key, on in asked.items() if on):
            yield Problem(message, key=f"finetuning.{key}", hint="leave it out")
    if asked["dynamic_sampling"] and finetuning.examples_per_step is None:
        yield Problem(
            "a step takes all examples, so there are no further ones",
            key="finetuning.dynamic_sampling",
            hint="set finetuning.examples_per_step",
        )


def _local_model(config: RunConfig) -> Iterator[Problem]:
    adapter, (name, llm) = adapter_of(config), target_llm_of(config)
    if adapter is None or llm is None or not adapter.needs_local_model or llm.trainable_locally:
        return
    local = [name for name, other in config.llms.items() if other.trainable_locally]
    yield Problem(
        f"trainer_adapters.{config.finetuning.trainer_adapter} trains weights in this process, which those of "
        f"llms.{name} (`_type: {llm.component_name}`) are not",
        key="finetuning.target_model" if config.finetuning.target_model else f"llms.{name}",
        hint=f"fits: {', '.join(local)}" if local else "use an llm of `_type: local`",
    )


def _tokens(config: RunConfig) -> Iterator[Problem]:
    builder, (name, llm) = builder_of(config), target_llm_of(config)
    if builder is None or llm is None or not builder.token_level:
        return
    trained = f"`_type: {builder.component_name}` trains on sampled tokens"
    if builder.keeps_calls and not llm.records_logprobs():
        message = f"{trained}, but llms.{name} (`_type: {llm.component_name}`) records no logprobs"
        yield Problem(message, key=f"llms.{name}", hint="set `logprobs: true`")
    if not builder.keeps_calls and not llm.records_token_ids():
        yield Problem(
            f"{trained}, but llms.{name} (`_type: {llm.component_name}`) returns text without token ids and logprobs",
            key=f"llms.{name}",
            hint="text can be trained on as preference pairs or demonstrations",
        )
    for setting in llm.truncating_sampling():
        yield Problem(
            f"{trained} at their logprobs under the whole distribution, which {setting} changes",
            key=f"llms.{name}.{setting}",
            hint="set it to 1" if setting == "temperature" else "leave it out; temperature is fine",
        )


def _candidates(config: RunConfig) -> Iterator[Problem]:
    builder = builder_of(config)
    wanted = builder.candidate_step() if builder is not None else None
    if wanted is None:
        return
    workflow = [config.workflow] if config.workflow is not None else []
    emitting = [emitter.candidate_steps() for emitter in (*workflow, *config.functions.values())]
    emitting += [strategy.candidate_steps() for strategy in config.ttc_strategies.values()]
    steps = frozenset[str]().union(*emitting)
    if wanted not in steps:
        name = config.finetuning.trajectory_builder
        emitted = f"they emit: {', '.join(sorted(steps))}" if steps else "none of them emits scored candidates"
        yield Problem(
            f"no workflow, function or ttc_strategy of this config emits candidates named {wanted!r}",
            key=f"trajectory_builders.{name}.ttc_step_name",
            hint=emitted,
        )


def _comparisons(config: RunConfig) -> Iterator[Problem]:
    """A score that compares rollouts of one policy with one another has the same mean for every policy."""
    for split in HELD_OUT:
        for name in metric_names(config, split):
            evaluator = config.eval.evaluators.get(name)
            if evaluator is not None and evaluator.compares_rollouts():
                others = [other for other, entry in config.eval.evaluators.items() if not entry.compares_rollouts()]
                yield Problem(
                    f"eval.evaluators.{name} compares rollouts of the same policy, so its mean is the same for every policy",
                    key=f"finetuning.{split}.metrics",
                    hint=f"name others: {', '.join(others)}"
                    if others
                    else "add an evaluator that scores each rollout by itself",
                )


_CHECKS: tuple[Callable[[RunConfig], Iterator[Problem]], ...] = (
    _needed,
    _records,
    _target,
    _builder_and_adapter,
    _calls,
    _trainer_and_builder,
    _unhonoured,
    _kept_weights,
    *backend_checks,
    _groups_only,
    _local_model,
    _tokens,
    _candidates,
    _comparisons,
    clashes,
    held_out_misfits,
)


def _combinations(config: RunConfig) -> str:
    """The entries of this config that would fit together, for a hint."""
    fitting = [
        f"{builder_name} + {adapter_name} + {trainer_name}"
        for builder_name, builder in config.trajectory_builders.items()
        for adapter_name, adapter in config.trainer_adapters.items()
        for trainer_name, trainer in config.trainers.items()
        if builder.makes in adapter.takes() and builder.makes in trainer.fits
    ]
    if fitting:
        return f"these of this config fit (builder + adapter + trainer): {'; '.join(fitting)}"
    return "no builder, adapter and trainer of this config fit together"
