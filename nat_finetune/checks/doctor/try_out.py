"""The real model on a few examples: chat template, known answers, rollouts, and what the builder makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nat_finetune.checks.doctor.chat import chat_findings
from nat_finetune.checks.doctor.chosen import builder_of, local_adapter_of
from nat_finetune.checks.doctor.data import left_out_findings
from nat_finetune.checks.doctor.finding import Finding, error, warning
from nat_finetune.checks.doctor.method import method_findings
from nat_finetune.checks.doctor.rewards import reward_findings
from nat_finetune.checks.doctor.signal import Seen, signal_findings
from nat_finetune.compose import Composition, compose
from nat_finetune.config.component import ItemKind
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import DataError
from nat_finetune.finetune import rollout_source
from nat_finetune.interfaces import Built, WarningBuilder
from nat_finetune.preflight.calibration import best_total, check_known_answers
from nat_finetune.preflight.holdout import DataSets, check_pairs
from nat_finetune.preflight.reward_check import trained_reward
from nat_finetune.registry import Registry
from nat_finetune.rollout_service import requests_for
from nat_finetune.steps.selection import best_scores
from nat_finetune.types import Dropped, DropReason, Item, PreferencePair, Rollout

LONGEST_ROLLOUT = 300.0
"""Seconds. A run may allow more; the doctor does not wait longer."""
ENCODED = 200
"""Pairs whose tokens are looked at."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What is tried."""

    config: RunConfig
    registry: Registry
    data: DataSets
    examples: int

    @property
    def hasty(self) -> RunConfig:
        """The config with rollouts that are not repeated."""
        finetuning = self.config.finetuning
        seconds = min(finetuning.rollout_timeout_seconds or LONGEST_ROLLOUT, LONGEST_ROLLOUT)
        changed = finetuning.model_copy(update={"rollout_retries": 0, "rollout_timeout_seconds": seconds})
        return self.config.model_copy(update={"finetuning": changed})

    @property
    def makes(self) -> ItemKind:
        """What the builder makes."""
        builder = builder_of(self.config)
        assert builder is not None, "checked by the fit of the config"
        return builder.makes


async def try_out(tried: Tried) -> list[Finding]:
    """Known answers, then rollouts of the first examples.

    Raises:
        NatFinetuneError: something could not be made at all.
    """
    config, found = tried.config, list[Finding]()
    async with compose(tried.hasty, tried.registry) as parts:
        if parts.target.rewards and config.finetuning.calibration.enabled:
            reward = await trained_reward(tried.hasty, parts)
            best = best_total(parts.target, best_scores(parts.target, reward.evaluators))
            settings, seed = config.finetuning.calibration, config.finetuning.seed
            found += reward_findings(config, await check_known_answers(reward, tried.data.train, settings, best, seed))
        source = await rollout_source(tried.hasty, parts)
        examples = tried.data.train[: tried.examples]
        requests = requests_for(0, examples, source.builder.generations, config.finetuning.seed, purpose="doctor")
        rollouts = await source.service.run(requests, policy_version=0, trained_rewards=parts.target.needed_scores)
        try:
            built = _built(source.builder.build(rollouts))
        except DataError as failure:
            key = f"trajectory_builders.{config.finetuning.trajectory_builder}"
            found.append(error("signal.no-items", str(failure), "see the message", key))
            built = Built(0, (), ())
        warnings = source.builder.warnings(built) if isinstance(source.builder, WarningBuilder) else ()
        seen = Seen(rollouts, built.items, built.dropped, parts.target, tried.makes, tuple(warnings))
        found += signal_findings(config, seen)
        found += method_findings(config, seen, tried.data.train)
        found += await _about_tokens(tried, parts, built.items, rollouts)
    return found


async def read_records(tried: Tried) -> list[Finding]:
    """Items of records: the workflow is not run.

    Raises:
        NatFinetuneError: the records can't be used.
    """
    config = tried.config
    key = f"trajectory_builders.{config.finetuning.trajectory_builder}"
    found: list[Finding] = []
    async with compose(tried.hasty, tried.registry) as parts:
        source = await parts.get_records()
        assert source is not None, "asked of builders of records only"
        built = _built(source.build())
        lenient = config.model_copy(update={"finetuning": config.finetuning.model_copy(update={"allow_leakage": True})})
        say = warning if config.finetuning.allow_leakage else error
        for text in check_pairs(built.items, tried.data, lenient):
            if text.startswith("allow_leakage: "):
                message = text.removeprefix("allow_leakage: ")
                found.append(say("data.leak", message, "take them out of one side", f"{key}.dataset"))
        bad = [drop for drop in built.dropped if drop.reason is DropReason.BAD_RECORD]
        found += left_out_findings(bad, f"{key}.dataset")
        seen = Seen((), built.items, built.dropped, parts.target, tried.makes)
        found += signal_findings(config, seen)
        found += method_findings(config, seen, tried.data.train)
        found += await _about_tokens(tried, parts, built.items, ())
    return found


def _built(made: Iterator[Item | Dropped]) -> Built:
    items: list[Item] = []
    dropped: list[Dropped] = []
    for one in made:
        if isinstance(one, Dropped):
            dropped.append(one)
        else:
            items.append(one)
    return Built(0, tuple(items), tuple(dropped))


async def _about_tokens(tried: Tried, parts: Composition, items: Sequence[Item], rollouts: Sequence[Rollout]) -> list[Finding]:
    """The template, and whether items are too long; of a local model only."""
    config, llm = tried.config, tried.config.llms[parts.target.llm]
    adapter = local_adapter_of(config)
    if not llm.trainable_locally or adapter is None:
        return []
    policy = await parts.get_policy()
    key, found = f"llms.{parts.target.llm}.model", list[Finding]()
    calls = [call for rollout in rollouts for call in rollout.model_calls if call.llm == parts.target.llm]
    if not policy.source.startswith("builtin:"):  # shipped policies have prompts of their own, and few words
        several = any(message.get("role") == "assistant" for call in calls for message in call.messages)
        tools = any(call.tools for call in calls)
        found += chat_findings(policy.format, key, tried.makes, several_turns=several, tools=tools)
    limit = adapter.max_length or policy.max_context
    lengths = [len(call.prompt_ids or ()) + len(call.completion_ids or ()) for call in calls]
    too_long = sum(limit is not None and length > limit for length in lengths)
    encoded = [item for item in items if isinstance(item, PreferencePair)][:ENCODED]
    total, what = len(lengths), "calls"
    if encoded:
        total, what = len(encoded), "pairs"
        try:
            too_long = _too_long(encoded, policy.format, limit)
        except DataError as failure:
            found.append(error("chat.end", str(failure), "see the message", key))
            too_long = 0
    if too_long:
        say = error if too_long == total else warning
        message = f"{too_long} of {total} {what} are longer than {limit} tokens, which the trainer takes"
        where = f"trainer_adapters.{config.finetuning.trainer_adapter}.max_length"
        found.append(say("tokens.too-long", message, "raise max_length, or shorten prompts", where))
    return found


def _too_long(pairs: Sequence[PreferencePair], chat: Any, limit: int | None) -> int:
    from nat_finetune.local.pair_rows import encode_pairs

    dropped = encode_pairs(pairs, chat, max_length=limit, truncate_prompts=False).dropped
    return sum(drop.reason is DropReason.TOO_LONG for drop in dropped)
