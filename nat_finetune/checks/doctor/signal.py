"""What a few rollouts show: is the right model heard, does the reward differ where it must, are items formed? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.config.component import ItemKind
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.groups import group_spread
from nat_finetune.data.signal import evaluator_failures, scored_attempts, unscored
from nat_finetune.data.trajectories import is_target, target_calls
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Dropped,
    DropReason,
    FinishReason,
    Group,
    Item,
    Rollout,
    Target,
)

MOSTLY = 0.75
CUT = 0.5
"""Share of the target model's completions that may be cut off."""
_FILTERS = (DropReason.SCORE_DIFF, DropReason.MIN_CHOSEN_SCORE, DropReason.LOW_REWARD, DropReason.LOW_SCORE)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a few examples gave."""

    rollouts: Sequence[Rollout]
    items: Sequence[Item]
    dropped: Sequence[Dropped]
    target: Target
    makes: ItemKind
    warnings: Sequence[str] = field(default_factory=tuple)
    """Of the trajectory builder."""

    @property
    def groups(self) -> list[Group]:
        """The items that are groups."""
        return [item for item in self.items if isinstance(item, Group)]


def signal_findings(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    """Everything that rollouts say, what ends a run first."""
    failed = [r for r in seen.rollouts if r.failure is not None and r.failure.cause is Cause.INFRASTRUCTURE]
    yield from _failures(config, seen, failed)
    if seen.rollouts and len(failed) == len(seen.rollouts):
        return
    if seen.rollouts:
        yield from _targets(config, seen)
    yield from _unknown(config, seen)
    yield from _cut(config, seen)
    yield from _formed(config, seen)
    yield from _spread(config, seen)
    for text in seen.warnings:
        key = f"trajectory_builders.{config.finetuning.trajectory_builder}"
        yield warning("signal.builder", text, "see the message", key)


def _failures(config: RunConfig, seen: Seen, failed: Sequence[Rollout]) -> Iterator[Finding]:
    count, most = len(seen.rollouts), config.finetuning.max_failure_rate
    if failed:
        first = failed[0].failure
        assert first is not None, "these have one"
        message = (
            f"{len(failed)} of {count} rollouts broke down, such as {first.error_type} in the {first.stage}: {first.message}"
        )
        say = error if len(failed) > most * count else warning
        yield say("rollout.failed", message, "mend what failed: it is not the policy's fault", "workflow")
    sound = [r for r in seen.rollouts if r not in failed]
    own = [r for r in sound if r.failure is not None]
    if own and len(own) > MOSTLY * len(sound):
        first = own[0].failure
        assert first is not None, "these have one"
        message = f"{len(own)} of {len(sound)} rollouts end in a failure of the policy, such as: {first.message}"
        fix = "show the form that is expected in the prompt, raise max_tokens, or begin with demonstrations (sft)"
        yield warning("rollout.policy-fails", message, fix, "workflow")
    yield from _unpriced(config, seen, own, [r for r in sound if r.failure is None])


def _unpriced(config: RunConfig, seen: Seen, own: Sequence[Rollout], finished: Sequence[Rollout]) -> Iterator[Finding]:
    for name in seen.target.reward_names:
        failed = [v for r in own if (v := r.rewards.get(name)) is not None]
        done = [v for r in finished if (v := r.rewards.get(name)) is not None]
        weight = next(term.weight for term in seen.target.rewards if term.name == name)
        if failed and done and min(done) != max(done) and weight * sum(failed) / len(failed) >= weight * sum(done) / len(done):
            message = (
                f"failed rollouts earn {sum(failed) / len(failed):.3g} in {name}, finished ones {sum(done) / len(done):.3g}"
            )
            fix = "set finetuning.failure_reward below what a poor finished rollout earns"
            yield warning("settings.failure-unpriced", message, fix, "finetuning.failure_reward")


def _targets(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    calls = [call for rollout in seen.rollouts for call in rollout.model_calls]
    heard = [call for call in calls if is_target(call, seen.target)]
    where = Counter(f"{' > '.join(call.path)} by {call.llm}" for call in calls)
    if not heard and not any(isinstance(e, CandidateScored) for r in seen.rollouts for e in r.events):
        what = "; ".join(f"{count} x {place}" for place, count in where.most_common(4)) or "no model was called"
        yield error(
            "target.no-call",
            f"no call by {seen.target.llm} inside {' or '.join(seen.target.functions)}; what was called: {what}",
            "name the functions in which it is called, and the model that is",
            "finetuning.target_functions",
        )
    elif len(seen.target.functions) > 1:
        for name in seen.target.functions:
            if heard and not any(name in call.path for call in heard):
                message = f"{name} made no call of {seen.target.llm} in {len(seen.rollouts)} rollouts"
                yield warning("target.function-silent", message, "take it out, or see why", "finetuning.target_functions")


def _unknown(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    names = seen.target.needed_scores
    asked, missing = scored_attempts(seen.rollouts), unscored(seen.rollouts, names)
    if not names or not missing:
        return
    failures = [f for rollout in missing for f in evaluator_failures(rollout)]
    why = f", such as {failures[0].error_type}: {failures[0].message}" if failures else ": the evaluator says None"
    say = error if len(missing) > config.finetuning.max_unscored_rate * len(asked) else warning
    message = f"{len(missing)} of {len(asked)} rollouts have no reward{why}"
    yield say("reward.unknown", message, "mend the evaluator, or give the examples what it needs", "eval.evaluators")


def _cut(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    calls = [call for rollout in seen.rollouts for call in target_calls(rollout, seen.target)]
    cut = [call for call in calls if call.finish_reason is FinishReason.LENGTH]
    if not cut or len(cut) <= CUT * len(calls):
        return
    limit = max(call.sampling.max_tokens for call in cut)
    message = f"{len(cut)} of {len(calls)} completions were cut off at max_tokens = {limit}"
    key, fix = f"llms.{seen.target.llm}.max_tokens", "raise max_tokens until most completions end by themselves"
    if any(rollout.failure is not None for rollout in seen.rollouts) or not _differs(seen):
        yield warning("tokens.cut", message, fix, key)
    else:
        yield note("tokens.cut", f"{message}; their rewards differ all the same", f"fine where it is meant; else {fix}", key)


def _differs(seen: Seen) -> bool:
    return bool(seen.items)


def _formed(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    key = f"trajectory_builders.{config.finetuning.trajectory_builder}"
    reasons = Counter(
        drop.reason for drop in seen.dropped if drop.what in ("pair", "trajectory", "group", "candidate", "rollout")
    )
    filtered = sum(reasons[reason] for reason in _FILTERS)
    shown = ", ".join(f"{count} x {reason.value}" for reason, count in reasons.most_common(4)) or "nothing was there to use"
    kind = {"group": "group", "pair": "preference pair", "demonstration": "demonstration"}[seen.makes]
    if filtered and filtered >= MOSTLY * (filtered + len(seen.items)):
        message = f"its filters leave out {filtered} and keep {len(seen.items)} ({shown})"
        say = warning if seen.items else error
        yield say("signal.filtered", message, "lower min_score_diff, min_chosen_score or min_reward", key)
    elif not seen.items and reasons[DropReason.TIE] + reasons[DropReason.IDENTICAL_TEXT] > 0 and seen.makes == "pair":
        message = f"the candidates of a turn tie or are the same text ({shown})"
        fix = (
            "a score that tells them apart, more candidates, or a higher temperature; these few may not be typical (--examples)"
        )
        yield warning("signal.flat", message, fix, key)
    elif not seen.items and not reasons[DropReason.FLAT_GROUP]:
        message = (
            f"no {kind} was formed from {len(seen.rollouts)} rollouts: {shown}"
            if seen.rollouts
            else f"no {kind} was formed: {shown}"
        )
        yield error("signal.no-items", message, "see the reasons; docs/workflows.md says what a builder needs", key)


def _spread(config: RunConfig, seen: Seen) -> Iterator[Finding]:
    """Groups in which nothing differs are dropped as flat: the others are the items."""
    lively, flat = seen.groups, sum(drop.reason is DropReason.FLAT_GROUP for drop in seen.dropped)
    curriculum = config.finetuning.curriculum_learning
    if curriculum.enabled and lively:
        most = max(group_spread(group.trajectories, seen.target) for group in lively)
        if most < curriculum.min_reward_diff:
            message = f"rewards differ by {most:.3g} at most inside a group, min_reward_diff is {curriculum.min_reward_diff:g}"
            fix = "lower it: it is a filter and makes no signal"
            yield error("signal.filtered", message, fix, "finetuning.curriculum_learning.min_reward_diff")
    if flat and not lively:
        yield warning("signal.flat", f"{_levels(seen)} inside all {flat} groups", _FLAT_FIX, "finetuning.reward_function")
    elif flat > MOSTLY * (flat + len(lively)):
        message = f"{flat} of {flat + len(lively)} groups are flat: their rollouts teach nothing"
        fix = "more generations, examples of another difficulty, a reward that pays part of the way, or dynamic_sampling"
        yield warning("signal.mostly-flat", message, fix, "finetuning.reward_function")


_FLAT_FIX = (
    "in this order: the evaluator (do gold answers score best?), the difficulty (does the model ever succeed, and ever fail?), "
    "temperature and num_generations; more examples than these few may differ (--examples)"
)


def _levels(seen: Seen) -> str:
    alike = []
    for name in seen.target.reward_names:
        known = {v for r in seen.rollouts if (v := r.rewards.get(name)) is not None}
        alike.append(f"{name} is {known.pop():g} everywhere" if len(known) == 1 else f"{name} does not differ")
    return ", ".join(alike) or "rewards do not differ"
