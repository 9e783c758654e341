"""What a config holds out: examples that the workflow runs on, pairs of a builder's records, or both; and what fits it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.config.schema import PAIR_METRICS, EvaluationConfig, RunConfig, SplitConfig
from nat_finetune.errors import Problem

HeldOutSide = Literal["validation", "test"]
HELD_OUT: tuple[HeldOutSide, ...] = ("validation", "test")


def record_builder(config: RunConfig) -> TrajectoryBuilderConfig | None:
    """The run's builder if it trains on records; None where it builds from rollouts."""
    builder = config.trajectory_builders.get(config.finetuning.trajectory_builder or "")
    return builder if builder is not None and builder.record_dataset() is not None else None


def held_out_settings(config: RunConfig, side: HeldOutSide) -> EvaluationConfig | None:
    """`finetuning.validation` or `finetuning.test`."""
    return config.finetuning.validation if side == "validation" else config.finetuning.test


def evaluates_examples(config: RunConfig, side: HeldOutSide) -> bool:
    """Whether the workflow runs on held-out examples."""
    settings = held_out_settings(config, side)
    return settings is not None and (settings.dataset is not None or record_builder(config) is None)


def holds_pairs(config: RunConfig, side: HeldOutSide) -> bool:
    """Whether pairs of records are held out there."""
    settings = held_out_settings(config, side)
    return settings is not None and record_builder(config) is not None and bool(share(config, side) or settings.records)


def share(config: RunConfig, side: HeldOutSide) -> float:
    """What `finetuning.split` takes, 0 where it takes nothing."""
    split = config.finetuning.split or SplitConfig()
    return split.validation if side == "validation" else split.test


def metric_names(config: RunConfig, side: HeldOutSide) -> tuple[str, ...]:
    """What is reported there: what the config names, else all that can be; of pairs always both figures."""
    settings = held_out_settings(config, side)
    if settings is None:
        return ()
    rewards = [reward.name for reward in config.finetuning.rewards]
    by_workflow = (rewards or list(config.eval.evaluators)) if evaluates_examples(config, side) else []
    of_pairs = PAIR_METRICS if holds_pairs(config, side) else ()
    names = settings.names([*of_pairs, *by_workflow])
    return (*names, *(name for name in of_pairs if name not in names))


def clashes(config: RunConfig) -> Iterator[Problem]:
    """Two sources of the same held-out examples."""
    for side in HELD_OUT:
        settings = held_out_settings(config, side)
        if settings is not None and settings.dataset is not None and share(config, side) and record_builder(config) is None:
            message = f"{side} has both a dataset and a share of the split: give one, {side}.dataset or split.{side}"
            yield Problem(message, key=f"finetuning.{side}.dataset")


def misfits(config: RunConfig) -> Iterator[Problem]:
    """What would be ignored or can't be measured of what a config holds out."""
    for side in HELD_OUT:
        yield from _records(config, side)
        yield from _metrics(config, side)
    if any(holds_pairs(config, side) for side in HELD_OUT):
        yield from _pairs(config)


def _records(config: RunConfig, side: HeldOutSide) -> Iterator[Problem]:
    settings = held_out_settings(config, side)
    if settings is None or settings.records is None:
        return
    key, records = f"finetuning.{side}.records", settings.records
    if record_builder(config) is None:
        message = "would be ignored: finetuning.trajectory_builder builds from rollouts, not from records"
        yield Problem(message, key=key, hint="leave it out, or use preference_dataset_builder")
    if not records.gives_records:
        yield Problem(f"`_type: {records.component_name}` gives examples, not records", key=key)
    for name in sorted(records.model_fields_set & {"structure"}):
        message = "would be ignored: `columns` and `format` of the builder say what the columns mean"
        yield Problem(message, key=f"{key}.{name}", hint="leave it out")


def _metrics(config: RunConfig, side: HeldOutSide) -> Iterator[Problem]:
    settings = held_out_settings(config, side)
    if settings is None:
        return
    place, pairs, examples = f"finetuning.{side}", holds_pairs(config, side), evaluates_examples(config, side)
    for name in settings.names(()):
        if name in PAIR_METRICS and not pairs and name not in config.eval.evaluators:
            message = f"{name} is measured on held-out preference pairs, and there are none"
            hint = f"with a builder that trains on records: set finetuning.split.{side} or {place}.records"
            yield Problem(message, key=f"{place}.metrics", hint=hint)
        elif name not in PAIR_METRICS and not examples:
            message = f"{name} scores rollouts of the workflow, and there are no held-out examples to run it on"
            yield Problem(message, key=f"{place}.metrics", hint=f"give {place}.dataset")
    if not examples and "generations" in settings.model_fields_set:
        message = "would be ignored: there are no held-out examples to run the workflow on"
        yield Problem(message, key=f"{place}.generations", hint=f"leave it out, or give {place}.dataset")
    if pairs and examples and not set(metric_names(config, side)) - set(PAIR_METRICS):
        message = "would be ignored: no evaluator is among the metrics, and pairs are not run"
        yield Problem(message, key=f"{place}.dataset", hint="leave it out, or name evaluators")


def _pairs(config: RunConfig) -> Iterator[Problem]:
    """Whether the run can score held-out pairs."""
    finetuning, builder = config.finetuning, record_builder(config)
    adapter = config.trainer_adapters.get(finetuning.trainer_adapter or "")
    if adapter is not None and not adapter.keeps_weights:
        message = f"held-out pairs are scored by the policy's own weights, which `_type: {adapter.component_name}` has not"
        key = next(key for key in ("split", "test", "validation") if key in finetuning.model_fields_set)
        yield Problem(message, key=f"finetuning.{key}", hint="use local_trainer_adapter, or hold nothing out")
    if builder is not None and builder.makes != "pair":
        message = f"`_type: {builder.component_name}` makes no preference pairs, and only these are evaluated"
        yield Problem(message, key="finetuning.trajectory_builder")
    for name in PAIR_METRICS:
        if name in config.eval.evaluators:
            message = "is the name of what is measured on the held-out pairs"
            yield Problem(message, key=f"eval.evaluators.{name}", hint="call the evaluator something else")
