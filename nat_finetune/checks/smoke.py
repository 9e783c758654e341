"""A user's own workflow and config, end to end in under a minute: does everything hold together before hours are paid for?

Two examples, one update, and in place of every model a small random policy that writes bytes (`local.byte_policy`). Such a
policy earns nothing on most tasks: where real scores leave nothing to train on, labelled synthetic ones stand in, so that what
is tested is the plumbing: events, items, masks, update, export, reload. Nothing that is said about scores here means anything.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from nat_finetune.checks.small import first_examples, with_factories, without_split
from nat_finetune.compose import compose
from nat_finetune.config.component import TrajectoryBuilderConfig
from nat_finetune.config.load import LoadedConfig, load_config
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.signal import evaluator_failures
from nat_finetune.errors import BackendError, ConfigError, NoTrainableSignal, Problem
from nat_finetune.finetune import finetune, new_run, policy_of
from nat_finetune.registry import Factory, Kind, Registration, Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.runstore import RunStore
from nat_finetune.types import CandidateScored, Dropped, Example, Item, Rollout, Score

EXAMPLES = 2
RECORDS = 16
MOST_TOKENS = 12
RELOAD_BOUND = 1e-3
"""Nats between the trained policy and the exported model that rounding explains, on a short completion."""
_PROBE: tuple[list[dict[str, str]], str] = ([{"role": "user", "content": "0 1 2"}], "3 4 5")


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """What was seen on the way."""

    report: Mapping[str, Any]
    """Of the run: `report.json`."""
    synthetic: bool
    """Whether synthetic scores stood in."""
    reload_difference: float
    """Nats between the trained policy and its export, read anew."""
    seconds: float
    silent: tuple[str, ...] = ()
    """Evaluators that gave no score to any rollout."""

    @property
    def lines(self) -> list[str]:
        """The same in sentences."""
        step = next(step for step in self.report["steps"] if step.get("update"))
        ledger = {row["bucket"]: 0 for row in self.report["ledger"]["rows"]}
        for row in self.report["ledger"]["rows"]:
            ledger[row["bucket"]] += row["tokens"]
        scores = "synthetic scores (real ones left nothing to train on)" if self.synthetic else "real scores"
        failed = step["failed"]["policy"]
        silent = f"; no rollout got a score of {', '.join(self.silent)}: see that a real answer does" if self.silent else ""
        short = f"; {failed} ended in a failure of the policy: what your code does after it was not run" if failed else ""
        return [
            f"rollouts: {step['rollouts']}, {self.report['ledger']['calls']} model calls recorded{short}",
            f"items: {step['kept']} kept of {scores}{silent}",
            f"tokens: {', '.join(f'{count} {bucket}' for bucket, count in ledger.items()) or 'none sampled'}",
            f"update: {step['tokens']['trained']} tokens trained, loss {step['update'].get('loss', float('nan')):.4g}",
            f"export and reload: within {self.reload_difference:.2g} nats",
        ]


async def smoke(path: Path, overrides: list[str], registry: Registry, folder: Path) -> SmokeResult:
    """Run a config in small, in `folder`.

    Raises:
        NatFinetuneError: something does not hold together; the error is the one that the run itself would end with.
    """
    from nat_finetune.local.byte_policy import write_byte_policy

    began = time.monotonic()
    loaded = load_config(path, overrides, registry=registry)
    policy = write_byte_policy(folder / "policy")
    small = load_config(path, [*overrides, *_shrunk(loaded.config, policy)], registry=registry)
    few, synthetic, store = first_examples(registry, EXAMPLES, records=RECORDS), False, new_run(small, folder / "runs")
    run = store.folder
    try:
        report = await finetune(small, few, store, NullProgress())
    except NoTrainableSignal:
        if _no_evaluator_answers(store):
            raise
        report = {"steps": []}
    silent = _silent(store)
    if not any(step.get("update") for step in report["steps"]):
        synthetic = True
        report, run = await _run(small, _with_synthetic_scores(few), folder / "runs")
    difference = await _reload(small, registry, run, folder / "exported")
    return SmokeResult(report, synthetic, difference, time.monotonic() - began, silent)


def _no_evaluator_answers(store: RunStore) -> bool:
    """Whether evaluators fail and none says anything: synthetic scores would hide what ends the run."""
    rollouts = _rollouts(store)
    failed = any(evaluator_failures(rollout) for rollout in rollouts)
    return failed and all(reward is None for rollout in rollouts for reward in rollout.rewards.values())


def _silent(store: RunStore) -> tuple[str, ...]:
    """Evaluators that scored no rollout at all: with a random policy that may be right, or they may never answer."""
    rollouts = _rollouts(store)
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.rewards)
    return tuple(name for name in names if all(rollout.rewards.get(name) is None for rollout in rollouts))


def _rollouts(store: RunStore) -> list[Rollout]:
    return [rollout for _, rollout in store.rollouts() if rollout is not None]  # also those of a step to be collected anew


async def _run(loaded: LoadedConfig, registry: Registry, folder: Path) -> tuple[dict[str, Any], Path]:
    store = new_run(loaded, folder)
    return await finetune(loaded, registry, store, NullProgress()), store.folder


async def _reload(loaded: LoadedConfig, registry: Registry, run: Path, exported: Path) -> float:
    """Export the trained policy, read it anew, and hold the two against each other."""
    from nat_finetune.local.export import export_merged
    from nat_finetune.local.model import load_model
    from nat_finetune.local.policy import LocalPolicy

    async def probe(policy: LocalPolicy) -> float:
        context, completion = _PROBE
        ((score,),) = await policy.score([context], [[completion]], temperature=1.0, max_tokens=64)
        return score

    async with compose(loaded.config, registry) as parts:
        await policy_of(loaded.config, parts, run, "best")
        trained = await parts.get_policy()
        export_merged(trained, exported)
        want = await probe(trained)
    with closing(LocalPolicy("exported", load_model(str(exported)))) as policy:
        difference = abs(want - await probe(policy))
    if difference > RELOAD_BOUND:
        raise BackendError(f"the exported model is not the trained one: {difference:.3g} nats apart on a short completion")
    return difference


def _shrunk(config: RunConfig, policy: Path) -> list[str]:
    """Overrides that make a config small; what its components refuse to be told is left alone."""
    finetuning = config.finetuning
    trainer = config.trainers.get(finetuning.trainer or "")
    adapter = config.trainer_adapters.get(finetuning.trainer_adapter or "")
    if adapter is None or trainer is None:
        problem = Problem("there is nothing to run: no trainer and trainer adapter are named", key="finetuning")
        raise ConfigError(problem)
    if not adapter.needs_local_model:
        message = f"smoke runs the local backend, `_type: {adapter.component_name}` trains elsewhere"
        key = f"trainer_adapters.{finetuning.trainer_adapter}"
        raise ConfigError(Problem(message, key=key, hint="`nat-finetune migrate --to local` writes a config that it can run"))
    wanted = {"num_epochs": 1, "examples_per_step": EXAMPLES}
    changes = [f"finetuning.{key}={value}" for key, value in wanted.items() if key not in trainer.unhonoured]
    changes += ["finetuning.enabled=true", "finetuning.checkpoint_interval=1", *without_split(config)]
    changes.append("finetuning.calibration={enabled: false}")  # of the reward, which is not looked at here
    for name, llm in config.llms.items():
        given = llm.model_dump(include={"temperature", "max_tokens"})
        tokens = min(given.get("max_tokens") or MOST_TOKENS, MOST_TOKENS)
        settings = (
            f"_type: local, model: {policy.absolute()}, max_tokens: {tokens}, temperature: {given.get('temperature') or 1.0}"
        )
        changes.append(f"llms.{name}={{{settings}}}")
    return changes


class _Rescored:
    """A trajectory builder that sees synthetic scores on every candidate."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.generations = inner.generations

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        yield from self._inner.build(_rescored(rollout) for rollout in rollouts)


def _rescored(rollout: Rollout) -> Rollout:
    events = tuple(
        replace(event, score=_synthetic(f"{rollout.rollout_id}/{event.seq}")) if isinstance(event, CandidateScored) else event
        for event in rollout.events
    )
    return replace(rollout, events=events)


def _with_synthetic_scores(registry: Registry) -> Registry:
    """Evaluators that score by a hash of the rollout's id, and builders that see candidates scored like that."""

    def change(known: Registration) -> Factory | None:
        if known.kind is Kind.EVALUATOR:

            async def evaluator(config: Any, builder: Any) -> AsyncIterator[Any]:
                async def score(example: Example, rollout: Rollout) -> Score:
                    return Score(_synthetic(rollout.rollout_id), "synthetic")

                yield score

            return evaluator
        if known.kind is Kind.TRAJECTORY_BUILDER:

            async def rescoring(config: TrajectoryBuilderConfig, builder: Any) -> AsyncIterator[Any]:
                async with asynccontextmanager(known.factory)(config, builder) as inner:
                    yield _Rescored(inner) if config.candidate_step() is not None else inner

            return rescoring
        return None

    return with_factories(registry, change)


def _synthetic(key: str) -> float:
    """A score from 0 to 1 that depends on nothing but a name."""
    return int.from_bytes(sha256(key.encode()).digest()[:4]) / 2**32
