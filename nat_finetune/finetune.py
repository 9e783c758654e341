"""One run from a checked config to its report: compose, measure, train, measure again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nat_finetune.compose import Composition, compose, target_of
from nat_finetune.config.held_out import HeldOutSide, evaluates_examples, held_out_settings, metric_names
from nat_finetune.config.load import LoadedConfig, load_config
from nat_finetune.config.schema import PAIR_METRICS, FinetuningConfig, RunConfig
from nat_finetune.data import manifest
from nat_finetune.data.keys import examples_digest
from nat_finetune.data.splits import SIDES
from nat_finetune.errors import BackendError, ConfigError, NatFinetuneError, OutputError, Problem
from nat_finetune.evaluate import EvalSettings, PolicyEvaluation
from nat_finetune.held_pairs import HeldPairs, PairEvaluation, load_pairs
from nat_finetune.interfaces import AnnotatingEvaluator, ObservingEvaluator, PairScorer, ReferencedEvaluator
from nat_finetune.preflight.holdout import DataSets, check_pairs, load_data, load_held_out
from nat_finetune.preflight.reward_check import require_trusted_reward
from nat_finetune.registry import Registry
from nat_finetune.report.backend import made_elsewhere
from nat_finetune.report.data import build_report, describe_environment
from nat_finetune.report.html import render
from nat_finetune.report.progress import Progress
from nat_finetune.rollout_service import RolloutService, RolloutSettings
from nat_finetune.run import Run
from nat_finetune.runstore import RunStore
from nat_finetune.steps.best import best_checkpoint
from nat_finetune.steps.job import leave_it
from nat_finetune.steps.parts import Parts, RolloutSource
from nat_finetune.steps.schedule import Budget
from nat_finetune.steps.selection import best_scores
from nat_finetune.steps.serving import require_ready, unserved
from nat_finetune.types import EvalResult, Example, PolicyRef

Checkpoint = Literal["best", "last"]
"""Of a run: the one that its validation set chose (the last one where nothing chooses), or the last one."""


def new_run(loaded: LoadedConfig, output_dir: Path | None = None) -> RunStore:
    """Make the folder of a new run: its resolved config, versions and seed are in it before anything else happens.

    Raises:
        OutputError: the folder can't be made.
    """
    now = datetime.now(UTC)
    parent = output_dir if output_dir is not None else loaded.config.finetuning.output_dir
    store = RunStore.create(parent / f"{loaded.path.stem}-{now:%Y%m%dT%H%M%S}{now.microsecond // 1000:03d}")
    store.write_text("config.yml", loaded.to_yaml())
    seed = loaded.config.finetuning.seed
    store.write_json(
        "run.json",
        {
            "run_id": store.folder.name,
            "config_name": loaded.path.stem,
            "started": now.isoformat(timespec="seconds"),
            "environment": describe_environment(seed),
        },
    )
    store.commit(store.state())
    return store


def continued_run(folder: Path, registry: Registry) -> tuple[LoadedConfig, RunStore]:
    """A run folder and the config that it was started with.

    Raises:
        ConfigError: there is no run in the folder, or it has reached its end.
    """
    store = RunStore.open(folder)
    reported = (store.read_json("report.json") or {}).get("exit_code") == 0  # not so after a kill on the last metres
    if store.state().finished and reported:
        raise ConfigError(Problem("this run has reached its end; its report is there", file=str(folder)))
    return load_config(folder / "config.yml", registry=registry), store


async def evaluate_config(
    loaded: LoadedConfig,
    registry: Registry,
    split: Literal["test", "validation"],
    run: Path | None,
    checkpoint: Checkpoint = "best",
) -> EvalResult:
    """Evaluate a config's base model, or the trained model of a run, on a held-out dataset.

    Raises:
        ConfigError: the config names no such dataset.
    """
    config = loaded.config
    async with compose(config, registry) as parts:
        kept = _kept(RunStore(run)) if run is not None else None
        held = (await load_pairs(config, parts, kept)).held.get(split)
        examples, clusters = ([], {}) if held is not None else await load_held_out(config, parts, split, kept)
        if held is not None and evaluates_examples(config, split):
            examples, clusters = await load_held_out(config, parts, split, kept)
        policy = await policy_of(config, parts, run, checkpoint)
        why = None if run is None else unserved(await parts.get_trainer_adapter(), policy, RunStore(run))
        if why is not None:
            raise BackendError(f"{run} can't be evaluated: {why}")
        measured = await evaluation(config, parts, examples, split, clusters, held)
        if measured is None:
            raise ConfigError(Problem("the config has no such dataset", f"finetuning.{split}"))
        return await measured.evaluate(policy)


async def export_run(
    loaded: LoadedConfig,
    registry: Registry,
    run: Path,
    output: Path,
    form: Literal["merged", "adapter"],
    checkpoint: Checkpoint = "best",
) -> PolicyRef:
    """Write a run's trained model as a folder that plain transformers (`merged`) or peft (`adapter`) loads.

    Raises:
        OutputError: `output` exists already.
        BackendError: the run has no LoRA adapter to export, or no checkpoint, or its weights are a backend's.
    """
    from nat_finetune.local.export import export_adapter, export_merged

    if output.exists():
        raise OutputError(f"{output} exists; give a folder that does not")
    if not loaded.config.llms[target_of(loaded.config).llm].trainable_locally:
        raise BackendError(f"{run} has no weights here to export: {made_elsewhere(RunStore(run))}")
    async with compose(loaded.config, registry) as parts:
        policy = await policy_of(loaded.config, parts, run, checkpoint)
        local = await parts.get_policy()
        (export_merged if form == "merged" else export_adapter)(local, output)
        return policy


async def policy_of(config: RunConfig, parts: Composition, run: Path | None, which: Checkpoint) -> PolicyRef:
    """The policy of a run's best or last checkpoint, its weights loaded; the base policy where there is no run."""
    if run is None:
        return PolicyRef(parts.target.llm, 0)
    store = RunStore.open(run)
    state = store.state()
    if state.checkpoint is None or state.policy is None:
        why = "it is still running; wait for its first" if store.is_running else "the run made no update"
        raise BackendError(f"{run} has no checkpoint: {why}")
    best = best_checkpoint(store, config.finetuning.validation) if which == "best" else None
    name, policy = (best.checkpoint, best.policy) if best else (state.checkpoint, state.policy)
    adapter = await parts.get_trainer_adapter()
    adapter.load_state(store.checkpoint(name))
    return policy


def _kept(store: RunStore) -> manifest.Manifest | None:
    """Which example is where in a run that was begun before; None where its examples are not parts of one dataset."""
    split = store.read_json(manifest.NAME)
    return None if split is None else manifest.Manifest.from_dict(split)


async def finetune(
    loaded: LoadedConfig,
    registry: Registry,
    store: RunStore,
    progress: Progress,
    *,
    budget: Budget | None = None,
    cancel_wanted: Callable[[str], bool] = leave_it,
) -> dict[str, Any]:
    """Run the config in `store`'s folder, from the beginning or from where it stopped; returns the report.

    With a budget, training ends in time for the evaluations after it. `cancel_wanted` is asked after Ctrl-C, with a remote
    job's name.

    Raises:
        NatFinetuneError: the run could not reach its end; the report in the folder says why.
    """
    with store.locked():
        try:
            await _finetune(loaded, registry, store, progress, budget, cancel_wanted)
        except NatFinetuneError as error:
            with suppress(OutputError):  # a folder that takes no report either must not hide why the run ended
                write_report(loaded, store, exit_code=error.exit_code, reason=type(error).__name__, message=str(error))
            raise
        report = write_report(loaded, store, exit_code=0, reason=None, message=None)
    progress.finished(report)
    return report


def write_report(
    loaded: LoadedConfig, store: RunStore, *, exit_code: int, reason: str | None, message: str | None
) -> dict[str, Any]:
    """Write `report.json` and `report.html` from what the folder holds."""
    report = build_report(loaded, store, exit_code=exit_code, reason=reason, message=message)
    store.write_json("report.json", report)
    store.write_text("report.html", render(report))
    return report


async def _finetune(
    loaded: LoadedConfig,
    registry: Registry,
    store: RunStore,
    progress: Progress,
    budget: Budget | None,
    cancel_wanted: Callable[[str], bool],
) -> None:
    config = loaded.config
    began = time.monotonic()
    async with compose(config, registry, store.folder) as parts:
        data = await load_data(config, parts, _kept(store))
        if data.manifest is not None:
            store.write_json(manifest.NAME, data.manifest.to_dict())
        run = Run(store, config.finetuning, data.train, await _parts(config, parts, data, budget, cancel_wanted), progress)
        run.resume()
        await require_ready(await parts.get_trainer_adapter(), run.state.steps_done)
        for warning in [*data.warnings, *await _template_warnings(config, parts)]:
            if warning not in run.state.warnings:
                run.warn(warning)
        run.state.seconds["load"] = run.state.seconds.get("load", 0.0) + time.monotonic() - began
        held = data.pairs.held
        test = await evaluation(config, parts, data.test, "test", data.clusters["test"], held.get("test"))
        if run.state.steps_done == 0:
            everything = [*data.train, *data.validation, *data.test]
            await require_trusted_reward(config, parts, store, data.train, everything, run.warn)
            store.dropped.extend({"step": None, **asdict(drop)} for drop in data.dropped)
            await _measure(run, store, test, "test-before", progress)
            await run.validate(0)
        await _describe(config, parts, store, data)
        trainer = await parts.get_trainer()
        await trainer.train(run)
        run.take_best()
        await _measure(run, store, test, "test-after", progress)
        await _observe(config, parts, store)
        run.state.finished = True
        store.commit(run.state)


async def _parts(
    config: RunConfig, parts: Composition, data: DataSets, budget: Budget | None, cancel_wanted: Callable[[str], bool]
) -> Parts:
    records = await parts.get_records()
    if records is not None:
        records.split = data.pairs.split
    held = data.pairs.held.get("validation")
    return Parts(
        source=records or await rollout_source(config, parts),
        adapter=await parts.get_trainer_adapter(),
        validation=await evaluation(config, parts, data.validation, "validation", data.clusters["validation"], held),
        target=parts.target,
        best=await _best(parts),
        check_records=partial(check_pairs, data=data, config=config),
        budget=budget,
        cancel_wanted=cancel_wanted,
    )


async def rollout_source(config: RunConfig, parts: Composition) -> RolloutSource:
    """The workflow with its evaluators, and the builder that makes items of its rollouts."""
    workflow = await parts.get_workflow()
    scores = dict.fromkeys([*parts.target.needed_scores, *config.finetuning.watch])
    evaluators = {name: await parts.get_evaluator(name) for name in scores}
    service = RolloutService(workflow, evaluators, rollout_settings(config), enter_rollout=parts.enter_rollout)
    return RolloutSource(service, await parts.get_trajectory_builder())


async def _best(parts: Composition) -> dict[str, float]:
    """The best score of each trained reward, where its evaluator knows it."""
    return best_scores(parts.target, {name: await parts.get_evaluator(name) for name in parts.target.reward_names})


def rollout_settings(config: RunConfig) -> RolloutSettings:
    """How rollouts run under this config."""
    finetuning: FinetuningConfig = config.finetuning
    return RolloutSettings(
        max_concurrency=config.eval.general.max_concurrency,
        timeout_seconds=finetuning.rollout_timeout_seconds,
        retries=finetuning.rollout_retries,
        failure_reward=finetuning.failure_reward,
    )


async def evaluation(
    config: RunConfig,
    parts: Composition,
    examples: list[Example],
    split: HeldOutSide,
    clusters: Mapping[str, str],
    held: HeldPairs | None = None,
) -> PolicyEvaluation | None:
    """An evaluation on held-out examples, with their clusters by example key, and pairs; None where the config names none.

    Raises:
        ConfigError: pairs are held out, and the trainer adapter can't score them.
    """
    settings = held_out_settings(config, split)
    if settings is None:
        return None
    names = metric_names(config, split)
    evaluators = {name: await parts.get_evaluator(name) for name in names if held is None or name not in PAIR_METRICS}
    finetuning = config.finetuning
    pairs = None
    if held is not None:
        adapter = await parts.get_trainer_adapter()
        if not isinstance(adapter, PairScorer):
            key = f"finetuning.{split}"
            raise ConfigError(Problem(f"{finetuning.trainer_adapter} can't score held-out pairs of {held.source}", key))
        pairs = PairEvaluation(held, adapter)
    return PolicyEvaluation(
        examples,
        clusters,
        evaluators,
        await parts.get_workflow() if evaluators else None,
        rollout_settings(config),
        EvalSettings(split, names, settings.generations, finetuning.seed, finetuning.confidence),
        enter_rollout=parts.enter_rollout,
        pairs=pairs,
    )


async def _template_warnings(config: RunConfig, parts: Composition) -> list[str]:
    """Whether the model's chat template makes rollouts of several turns dear; shipped policies have prompts of their own."""
    from nat_finetune.local.prefixes import probe_prefixes

    builder = config.trajectory_builders.get(config.finetuning.trajectory_builder or "")
    if builder is None or not builder.token_level or not config.llms[parts.target.llm].trainable_locally:
        return []
    policy = await parts.get_policy()
    return [] if policy.source.startswith("builtin:") else probe_prefixes(policy.format).warnings


async def _measure(run: Run, store: RunStore, test: PolicyEvaluation | None, name: str, progress: Progress) -> None:
    """The test set, once before and once after."""
    if test is None or store.evaluation(name) is not None or run.is_unserved("measured"):
        return
    progress.stage_started(run.state.steps_done, "test", None)
    result = await test.evaluate(run.policy)
    run.state.seconds["test"] = run.state.seconds.get("test", 0.0) + result.seconds
    store.save_evaluation(name, result)
    progress.evaluated(name, run.state.steps_done, result)


async def _describe(config: RunConfig, parts: Composition, store: RunStore, data: DataSets) -> None:
    """Keep what the report needs to know of data and model, while both are at hand."""
    held_out = data.test or data.validation
    references: dict[str, dict[str, float]] = {}
    notes = list(data.notes)
    for name in config.eval.evaluators:
        evaluator = await parts.get_evaluator(name)
        if isinstance(evaluator, ReferencedEvaluator) and held_out:
            references[name] = dict(evaluator.references(held_out))
        if isinstance(evaluator, AnnotatingEvaluator) and held_out and data.train:
            notes += [note for note in await evaluator.notes(data.train, held_out) if note not in notes]
    policy = await parts.get_policy() if config.llms[parts.target.llm].trainable_locally else None
    if policy is not None:
        parameters = {id(p): p for p in policy.model.parameters()}.values()
        store.write_json(
            "policy.json",
            {
                "source": policy.source,
                "parameters": sum(p.numel() for p in parameters),
                "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
                "device": str(policy.device),
                "dtype": str(policy.dtype).removeprefix("torch."),
            },
        )
    sets = {side: data.of(side) for side in SIDES}
    store.write_json(
        "data.json",
        {
            "references": references,
            "notes": notes,
            "best": await _best(parts),
            "leaks": data.leaks,
            "pairs": {side: held.described for side, held in data.pairs.held.items()},
            "dropped": data.dropped,
            "sets": {
                name: {
                    "examples": len(examples),
                    "clusters": len(set(data.clusters[name].values())),
                    "hash": examples_digest(examples),
                }
                for name, examples in sets.items()
                if examples
            },
        },
    )


async def _observe(config: RunConfig, parts: Composition, store: RunStore) -> None:
    """Add what the evaluators noticed of themselves, over everything that they scored in this session."""
    observed: list[str] = []
    for name in config.eval.evaluators:
        evaluator = await parts.get_evaluator(name)
        if isinstance(evaluator, ObservingEvaluator):
            observed += [f"{name}: {line}" for line in evaluator.observed()]
    data = store.read_json("data.json")
    if observed and data is not None:
        store.write_json("data.json", {**data, "notes": [*data["notes"], *observed]})
