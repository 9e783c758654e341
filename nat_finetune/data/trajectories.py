"""Events of a rollout to its trajectory: token in, token out.

A call whose prompt extends an earlier sequence of the rollout token for token joins that segment, and what it added (a tool's
answer, the opponent's move, template markup) is context, never trained. Any other prompt starts a new segment. Nothing is ever
re-encoded from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nat_finetune.interfaces import Target
from nat_finetune.types import Dropped, DropReason, ModelCall, RewardGiven, Rollout, Segment, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Credit:
    """What pays a turn."""

    per_turn: bool = False
    """False: the rollout's outcome pays every turn alike. True: a turn earns its step rewards and those that follow."""
    discount: float = 1.0
    """Weight of the next turn's return."""
    outcome_weight: float = 0.0
    """How much of the rollout's reward is added to the last turn's, under per-turn credit."""
    outcome: str | None = None
    """Name of the reward that is the outcome."""


@dataclass(slots=True)
class _Open:
    """A segment that may still grow."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


def target_calls(rollout: Rollout, target: Target) -> list[ModelCall]:
    """The calls that are trained: by the target model, inside one of the target functions, in the order they began."""
    return [call for call in rollout.model_calls if is_target(call, target)]


def is_target(call: ModelCall, target: Target) -> bool:
    """Whether a call is by the target model and inside a target function."""
    return call.llm == target.llm and any(name in call.path for name in target.functions)


def build_trajectory(rollout: Rollout, target: Target, credit: Credit) -> Iterator[Trajectory | Dropped]:
    """The rollout's trajectory, and every call that is not in it with the reason."""
    kept = target_calls(rollout, target)
    chosen = {call.seq for call in kept}
    for call in rollout.model_calls:
        if call.seq not in chosen:
            yield _dropped(rollout, "call", DropReason.OUTSIDE_TARGET, call.seq)
    problem = _problem(kept)
    if problem is not None:
        yield _dropped(rollout, "trajectory", problem)
        return
    credits = _credits(rollout, kept, credit)
    yield Trajectory(
        rollout_id=rollout.rollout_id,
        example_id=rollout.example_id,
        segments=tuple(_segments(kept, credits)),
        rewards={name: rollout.rewards.get(name) for name in target.reward_names},
        policy_version=rollout.policy_version,
    )


def _problem(calls: list[ModelCall]) -> DropReason | None:
    if not calls:
        return DropReason.NO_TRAINED_CALL
    if any(call.prompt_ids is None or not call.completion_ids for call in calls):
        return DropReason.NO_TOKEN_IDS
    if any(call.logprobs is None for call in calls):
        return DropReason.NO_LOGPROBS
    return None


def _segments(calls: list[ModelCall], credits: Mapping[int, float]) -> Iterator[Segment]:
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
            )
        )
    for done in segments:
        yield Segment(tuple(done.ids), tuple(done.mask), tuple(done.logprobs), tuple(done.turns))


def _extended(segments: Iterable[_Open], prompt: tuple[int, ...]) -> _Open | None:
    """The longest segment that the prompt extends token for token."""
    fitting = [s for s in segments if len(s.ids) <= len(prompt) and prompt[: len(s.ids)] == tuple(s.ids)]
    return max(fitting, key=lambda segment: len(segment.ids), default=None)


def _credits(rollout: Rollout, calls: list[ModelCall], credit: Credit) -> dict[int, float]:
    """Return of each call by `seq`: R_t = r_t + discount * R_(t+1); empty where a turn's step reward is unknown.

    A turn that the workflow paid nothing for is unknown, not 0: the whole rollout then falls back to its outcome.
    """
    if not credit.per_turn:
        return {}
    paid: dict[int, list[float | None]] = {}
    for event in rollout.events:
        if isinstance(event, RewardGiven) and event.call_seq is not None:
            paid.setdefault(event.call_seq, []).append(event.value)
    outcome = rollout.rewards.get(credit.outcome) if credit.outcome is not None else None
    if credit.outcome_weight and outcome is None:
        return {}
    following = credit.outcome_weight * (outcome or 0.0)
    returns: dict[int, float] = {}
    for position, call in enumerate(reversed(calls)):
        rewards = paid.get(call.seq)
        if not rewards or any(value is None for value in rewards):
            return {}
        step = sum(value for value in rewards if value is not None)
        following = step + (following if position == 0 else credit.discount * following)
        returns[call.seq] = following
    return returns


def _dropped(rollout: Rollout, what: str, reason: DropReason, call_seq: int | None = None) -> Dropped:
    return Dropped(
        what="call" if what == "call" else "trajectory",
        reason=reason,
        example_id=rollout.example_id,
        rollout_id=rollout.rollout_id,
        call_seq=call_seq,
    )
