"""Events of a rollout to its trajectory: token in, token out.

A call whose prompt extends an earlier sequence of the rollout token for token joins that segment, and what it added (a tool's
answer, the opponent's move, template markup) is context, never trained. Any other prompt starts a new segment. Nothing is ever
re-encoded from text.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from nat_finetune.data.rewards import paid_rewards, weighted_sum
from nat_finetune.types import (
    Dropped,
    DroppedWhat,
    DropReason,
    FinishReason,
    ModelCall,
    RewardGiven,
    Rollout,
    Segment,
    Target,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, slots=True)
class Credit:
    """What pays a turn."""

    per_turn: bool = False
    """False: the rollout's outcome pays every turn alike. True: a turn earns its step rewards and those that follow; one whose
    return is unknown has no credit, and the outcome pays it."""
    shaped: bool = False
    """True: a turn earns its own step rewards and the weighted outcome, and nothing of what follows."""
    by_state: bool = False
    """Whether a turn is compared with turns that had the same prompt, token for token, instead of the same index."""
    discount: float = 1.0
    """Weight of the next turn's return."""
    outcome_weight: float = 0.0
    """How much of the rollout's reward is added: to the last turn's under per-turn credit, to each turn's under shaped."""
    truncated: Literal["keep", "mask", "drop"] = "keep"
    """What becomes of a rollout one of whose trained calls `max_tokens` cut off: trained; compared with the others of its group
    but not trained itself; or left out."""


@dataclass(slots=True)
class _Open:
    """A segment that may still grow."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


def target_calls(rollout: Rollout, target: Target) -> list[ModelCall]:
    """The calls that are trained: by the target model, inside one of the target functions, in the order they began."""
    return sorted((call for call in rollout.model_calls if is_target(call, target)), key=lambda call: call.seq)


def is_target(call: ModelCall, target: Target) -> bool:
    """Whether a call is by the target model and inside a target function."""
    return call.llm == target.llm and is_inside(call.path, target)


def is_inside(path: Sequence[str], target: Target) -> bool:
    """Whether one of the functions that were running is a target function."""
    return any(name in path for name in target.functions)


def build_trajectory(rollout: Rollout, target: Target, credit: Credit) -> Iterator[Trajectory | Dropped]:
    """The rollout's trajectory, and every call that is not in it with the reason."""
    kept = target_calls(rollout, target)
    chosen = {call.seq for call in kept}
    for call in rollout.model_calls:
        if call.seq not in chosen:
            yield _dropped(rollout, "call", DropReason.OUTSIDE_TARGET, call.seq)
    cut = credit.truncated != "keep" and is_truncated(kept)
    problem = _problem(kept) or (DropReason.TRUNCATED if cut and credit.truncated == "drop" else None)
    if problem is not None:
        yield _dropped(rollout, "trajectory", problem)
        return
    rewards = paid_rewards(rollout.rewards, target.rewards)
    credits = _credits(rollout, kept, credit, weighted_sum(rewards, target.rewards))
    yield Trajectory(
        rollout_id=rollout.rollout_id,
        example_id=rollout.example_id,
        segments=tuple(_segments(kept, credits, by_state=credit.by_state)),
        rewards=rewards,
        policy_version=rollout.policy_version,
        trained=not cut,
    )


def is_truncated(calls: Iterable[ModelCall]) -> bool:
    """Whether `max_tokens` or the context cut one of the calls off."""
    return any(call.finish_reason is FinishReason.LENGTH for call in calls)


def _problem(calls: list[ModelCall]) -> DropReason | None:
    if not calls:
        return DropReason.NO_TRAINED_CALL
    if any(call.prompt_ids is None or not call.completion_ids for call in calls):
        return DropReason.NO_TOKEN_IDS
    if any(call.logprobs is None for call in calls):
        return DropReason.NO_LOGPROBS
    return None


def _segments(calls: list[ModelCall], credits: Mapping[int, float], *, by_state: bool) -> Iterator[Segment]:
    segments: list[_Open] = []
    for index, call in enumerate(calls):
        prompt, sampled, logprobs = call.prompt_ids or (), call.completion_ids or (), call.logprobs or ()
        segment = _extended(segments, prompt)
        if segment is None:
            segment = _Open()
            segments.append(segment)
        added = prompt[len(segment.ids) :]
        segment.ids += added
        segment.mask += [0] * len(added)
        segment.logprobs += [0.0] * len(added)
        start = len(segment.ids)
        segment.ids += sampled
        segment.mask += [1] * len(sampled)
        segment.logprobs += logprobs
        segment.turns.append(
            Turn(
                index=index,
                start=start,
                end=len(segment.ids),
                call_seq=call.seq,
                finish_reason=call.finish_reason,
                temperature=call.sampling.temperature,
                credit=credits.get(call.seq),
                state=_state(prompt) if by_state else None,
            )
        )
    for done in segments:
        yield Segment(tuple(done.ids), tuple(done.mask), tuple(done.logprobs), tuple(done.turns))


def _extended(segments: Iterable[_Open], prompt: tuple[int, ...]) -> _Open | None:
    """The longest segment that the prompt extends token for token, the first of several."""
    fitting = [segment for segment in segments if _extends(prompt, segment.ids)]
    return max(fitting, key=lambda segment: len(segment.ids), default=None)


def _extends(prompt: tuple[int, ...], ids: list[int]) -> bool:
    size = len(ids)
    # The last token is looked at first: it rules out most of the segments without a copy of the prompt.
    return size <= len(prompt) and prompt[size - 1] == ids[-1] and list(prompt[:size]) == ids


def _credits(rollout: Rollout, calls: Sequence[ModelCall], credit: Credit, outcome: float | None) -> dict[int, float]:
    """Known returns by the call's `seq`: R_t = r_t + discount * R_(t+1).

    The last turn's reward also holds what the workflow paid for the rollout as a whole, and the weighted outcome. A turn that
    was paid nothing is unknown, not 0: else a reply that ends the rollout before it is judged would earn more than a bad one.
    """
    if not (credit.per_turn or credit.shaped):
        return {}
    paid: dict[int | None, list[float | None]] = {}
    for event in rollout.events:
        if isinstance(event, RewardGiven):
            paid.setdefault(event.call_seq, []).append(event.value)
    whole = paid.pop(None, [])
    following, weight = outcome, credit.outcome_weight
    returns: dict[int, float] = {}
    for call in reversed(calls):
        step = _total([*paid.get(call.seq, [None]), *whole])
        following = _return(step, weight, following)
        if following is not None:
            returns[call.seq] = following
        whole = []
        if credit.shaped:
            following = outcome
        else:
            weight = credit.discount
    return returns


def _state(prompt: Sequence[int]) -> int:
    """A number for a prompt: the same in every process."""
    return int.from_bytes(sha256(array("q", prompt).tobytes()).digest()[:7], "big")


def _return(step: float | None, weight: float, following: float | None) -> float | None:
    if weight == 0:  # what follows has no part in it, known or not
        return step
    return None if step is None or following is None else step + weight * following


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) if len(known) == len(values) else None


def _dropped(rollout: Rollout, what: DroppedWhat, reason: DropReason, call_seq: int | None = None) -> Dropped:
    return Dropped(what, reason, "", rollout.example_id, rollout.rollout_id, call_seq)
