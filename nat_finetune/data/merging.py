"""How often a call joined an earlier sequence of its rollout, and why the others started a new one.

A new segment costs its whole prompt once more. When a chat template re-renders what the policy sampled, every turn does so:
the run should say that, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Literal

from nat_finetune.types import Group, ModelCall, Rollout, Trajectory

Start = Literal["first", "repeated", "re_rendered", "edited", "other"]


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Turns of trajectories, by how their segment began; everything sums over trajectories with `+`."""

    trajectories: int = 0
    turns: int = 0
    merged: int = 0
    """Turns that extended a segment token for token."""
    first: int = 0
    """New segments at a rollout's first turn."""
    repeated: int = 0
    """New segments with the token ids of an earlier prompt: several answers to one question."""
    re_rendered: int = 0
    """New segments whose messages continue an earlier call's, reply included, but whose token ids do not: the chat template
    dropped or rewrote earlier text."""
    edited: int = 0
    """New segments whose messages continue an earlier call's with another reply than the sampled one."""
    other: int = 0
    """New segments of another conversation: a sub-agent, a compacted history, a fresh prompt."""
    without_credit: int = 0
    """Turns that the rollout's outcome pays: all of them under `credit: outcome`."""

    def __add__(self, others: MergeCounts) -> MergeCounts:
        return MergeCounts(*(a + b for a, b in zip(astuple(self), astuple(others), strict=True)))


def count_merges(rollouts: Iterable[Rollout], groups: Iterable[Group]) -> MergeCounts:
    """Counts over the trajectories of the groups; `rollouts` must hold theirs."""
    calls = {rollout.rollout_id: {call.seq: call for call in rollout.model_calls} for rollout in rollouts}
    counts = MergeCounts()
    for group in groups:
        for trajectory in group.trajectories:
            counts += merge_counts(trajectory, calls[trajectory.rollout_id])
    return counts


def merge_counts(trajectory: Trajectory, calls: Mapping[int, ModelCall]) -> MergeCounts:
    """Counts of one trajectory, given its rollout's calls by `seq`."""
    turns = sorted((turn for segment in trajectory.segments for turn in segment.turns), key=lambda turn: turn.index)
    begins = {segment.turns[0].call_seq for segment in trajectory.segments}
    starts = dict.fromkeys(("first", "repeated", "re_rendered", "edited", "other"), 0)
    for position, turn in enumerate(turns):
        if turn.call_seq in begins:
            starts[_start(calls[turn.call_seq], [calls[earlier.call_seq] for earlier in turns[:position]])] += 1
    return MergeCounts(
        trajectories=1,
        turns=len(turns),
        merged=len(turns) - len(begins),
        without_credit=sum(turn.credit is None for turn in turns),
        **starts,
    )


def _start(call: ModelCall, earlier: Sequence[ModelCall]) -> Start:
    """Why a call began a segment of its own."""
    if not earlier:
        return "first"
    if any(call.prompt_ids == other.prompt_ids for other in earlier):
        return "repeated"
    continued = [other for other in earlier if _continues(call, other)]
    if not continued:
        return "other"
    latest = max(continued, key=lambda other: len(other.messages))
    reply = call.messages[len(latest.messages)]
    return "re_rendered" if reply.get("content") == latest.message.get("content") else "edited"


def _continues(call: ModelCall, other: ModelCall) -> bool:
    """Whether the call's messages are the other's, then an assistant's reply."""
    size = len(other.messages)
    return (
        len(call.messages) > size and call.messages[size].get("role") == "assistant" and call.messages[:size] == other.messages
    )
