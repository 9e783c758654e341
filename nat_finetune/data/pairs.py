"""Scored candidates to preference pairs: strictly ordered, one context on both sides, everything left out counted.

A turn is a rollout's turn id. "Reaches a threshold" allows a relative 1e-9: 0.3 - 0.2 reaches 0.1, and 0.1 + 0.2 against 0.3
is a tie.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from nat_finetune.data.keys import context_key, example_key, turn_key
from nat_finetune.data.trajectories import is_target
from nat_finetune.errors import DataError
from nat_finetune.interfaces import Target
from nat_finetune.types import (
    Candidate,
    CandidateScored,
    Dropped,
    DropReason,
    ModelCall,
    PreferencePair,
    Provenance,
    Rollout,
    as_messages,
)

RELATIVE = 1e-9


@dataclass(frozen=True, slots=True)
class PairRules:
    """How candidates of a turn become pairs; NAT's fields."""

    step_name: str
    exhaustive: bool = True
    """All unordered pairs; False: only the best against the worst."""
    min_score_diff: float = 0.0
    max_pairs_per_turn: int | None = None
    reward_from_score_diff: bool = True


@dataclass(slots=True)
class PairCounts:
    """What the pairs were made of."""

    examples_with_pair: int = 0
    turns: int = 0
    """Turns with at least one valid candidate: candidate sets."""
    candidates: int = 0
    """Valid candidates."""
    pairs: int = 0
    single_candidate: int = 0
    score_diff: int = 0


class PairBuilder:
    """Turns rollouts into pairs, one rollout at a time; `counts` says what of."""

    def __init__(self, rules: PairRules, target: Target) -> None:
        self._rules = rules
        self._target = target
        self.counts = PairCounts()

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[PreferencePair | Dropped]:
        """Pairs and drops, in the order of the rollouts.

        Raises:
            DataError: candidates were emitted, but none under the rules' step name; names those that were.
        """
        emitted: set[str] = set()
        paired: set[str] = set()
        for rollout in rollouts:
            events = [event for event in rollout.events if isinstance(event, CandidateScored)]
            emitted |= {event.step_name for event in events}
            mine = [event for event in events if event.step_name == self._rules.step_name]
            for made in self._rollout(rollout, mine):
                if isinstance(made, PreferencePair):
                    paired.add(example_key(rollout.example_id))
                self._count(made)
                yield made
        self.counts.examples_with_pair = len(paired)
        if emitted and self._rules.step_name not in emitted:
            raise DataError(
                f"ttc_step_name is {self._rules.step_name!r}, and nothing emitted candidates under it; emitted were: "
                + ", ".join(repr(name) for name in sorted(emitted))
            )

    def _count(self, made: PreferencePair | Dropped) -> None:
        if isinstance(made, PreferencePair):
            self.counts.pairs += 1
        elif made.reason is DropReason.SINGLE_CANDIDATE:
            self.counts.single_candidate += 1
        elif made.reason is DropReason.SCORE_DIFF:
            self.counts.score_diff += 1

    def _rollout(self, rollout: Rollout, events: Sequence[CandidateScored]) -> Iterator[PreferencePair | Dropped]:
        calls = {call.seq: call for call in rollout.model_calls}
        turns: dict[tuple[str, str | int], list[Candidate]] = {}
        emitted: dict[tuple[str, str | int], int] = {}
        for event in events:
            reason = _problem(event)
            position = 0
            if reason is not DropReason.NO_TURN_ID:
                position = emitted.get(turn_key(event.turn_id), 0)
                emitted[turn_key(event.turn_id)] = position + 1
            if reason is None and self._outside(event, calls):
                reason = DropReason.OUTSIDE_TARGET
            if reason is not None:
                yield Dropped("candidate", reason, "", rollout.example_id, rollout.rollout_id, event.call_seq)
                continue
            turns.setdefault(turn_key(event.turn_id), []).append(_candidate(event, position, rollout, calls))
        for candidates in turns.values():
            self.counts.turns += 1
            self.counts.candidates += len(candidates)
            yield from self._turn(rollout, candidates)

    def _outside(self, event: CandidateScored, calls: Mapping[int, ModelCall]) -> bool:
        """Whether the candidate came from another model, or from outside the target functions (the opponent's, say)."""
        call = calls.get(event.call_seq) if event.call_seq is not None else None
        return call is not None and not is_target(call, self._target)

    def _turn(self, rollout: Rollout, candidates: list[Candidate]) -> Iterator[PreferencePair | Dropped]:
        where = (rollout.example_id, rollout.rollout_id)
        if len(candidates) < 2:
            yield Dropped("turn", DropReason.SINGLE_CANDIDATE, "", *where, candidates[0].call_seq)
            return
        ranked = sorted(candidates, key=lambda candidate: -candidate.score)
        couples = list(combinations(ranked, 2)) if self._rules.exhaustive else [(ranked[0], ranked[-1])]
        kept: list[tuple[Candidate, Candidate]] = []
        for better, worse in couples:
            reason = self._pair_problem(better, worse)
            if reason is None:
                kept.append((better, worse))
            else:
                yield Dropped("pair", reason, "", *where)
        rank = {id(candidate): position for position, candidate in enumerate(ranked)}
        kept.sort(key=lambda pair: (pair[1].score - pair[0].score, rank[id(pair[0])], rank[id(pair[1])]))
        limit = self._rules.max_pairs_per_turn if self._rules.exhaustive else None
        for better, worse in kept[:limit]:
            yield self._pair(rollout, better, worse, len(candidates))
        for _ in kept[len(kept) if limit is None else limit :]:
            yield Dropped("pair", DropReason.MAX_PAIRS_PER_TURN, "", *where)

    def _pair_problem(self, better: Candidate, worse: Candidate) -> DropReason | None:
        difference = better.score - worse.score
        if difference <= RELATIVE * max(abs(better.score), abs(worse.score)):
            return DropReason.TIE
        if not reaches(difference, self._rules.min_score_diff, scale=max(abs(better.score), abs(worse.score))):
            return DropReason.SCORE_DIFF
        if context_key(better.context) != context_key(worse.context):
            return DropReason.CONTEXT_DIFFERS
        if better.completion == worse.completion:
            return DropReason.IDENTICAL_TEXT
        if answer_in_context(better.context, better.completion, worse.completion):
            return DropReason.ANSWER_IN_CONTEXT
        return None

    def _pair(self, rollout: Rollout, better: Candidate, worse: Candidate, candidates: int) -> PreferencePair:
        difference = better.score - worse.score
        exact = better.prompt_ids is not None and better.prompt_ids == worse.prompt_ids
        return PreferencePair(
            context=better.context,
            context_text=better.context_text,
            chosen=better.completion,
            rejected=worse.completion,
            chosen_score=better.score,
            rejected_score=worse.score,
            margin=difference,
            reward=difference if self._rules.reward_from_score_diff else better.score,
            set_id=f"{rollout.rollout_id}/{better.turn_id!r}",
            prompt_ids=better.prompt_ids if exact else None,
            chosen_ids=better.completion_ids if exact else None,
            rejected_ids=worse.completion_ids if exact else None,
            provenance=Provenance(
                example_id=rollout.example_id,
                rollout_id=rollout.rollout_id,
                turn_id=better.turn_id,
                chosen_index=better.index,
                rejected_index=worse.index,
                candidates=candidates,
                chosen_call=better.call_seq,
                rejected_call=worse.call_seq,
            ),
        )


def reaches(value: float, threshold: float, *, scale: float = 0.0) -> bool:
    """Whether `value >= threshold`, or equal to it up to a relative 1e-9 (of the larger of both and `scale`)."""
    return value >= threshold or threshold - value <= RELATIVE * max(abs(value), abs(threshold), scale)


def answer_in_context(context: Sequence[Mapping[str, Any]], chosen: str, rejected: str) -> bool:
    """Whether the context ends with the assistant saying one of the two answers."""
    last = context[-1] if context else {}
    return last.get("role") == "assistant" and last.get("content") in (chosen, rejected)


def _problem(event: CandidateScored) -> DropReason | None:
    """The first reason why a candidate can't be used."""
    score, context, output = event.score, event.input, event.output
    checks = (
        (isinstance(event.turn_id, str | int) and not isinstance(event.turn_id, bool), DropReason.NO_TURN_ID),
        (score is not None, DropReason.NO_SCORE),
        (_is_number(score), DropReason.SCORE_NOT_A_NUMBER),
        (context is not None, DropReason.NO_CONTEXT),
        (_is_context(context), DropReason.CONTEXT_NOT_MESSAGES),
        (isinstance(output, str) and bool(output.strip()), DropReason.OUTPUT_NOT_TEXT),
    )
    return next((reason for fine, reason in checks if not fine), None)


def _is_number(score: Any) -> bool:
    return isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)


def _is_context(context: Any) -> bool:
    if isinstance(context, str):
        return True
    return isinstance(context, list | tuple) and all(isinstance(message, Mapping) for message in context)


def _candidate(event: CandidateScored, position: int, rollout: Rollout, calls: Mapping[int, ModelCall]) -> Candidate:
    call = calls.get(event.call_seq) if event.call_seq is not None else None
    index = event.candidate_index
    return Candidate(
        turn_id=event.turn_id,
        index=index if isinstance(index, int) else position,
        context=as_messages(event.input),
        context_text=event.input if isinstance(event.input, str) else None,
        completion=event.output,
        score=event.score,
        prompt_ids=call.prompt_ids if call else None,
        completion_ids=call.completion_ids if call else None,
        rollout_id=rollout.rollout_id,
        call_seq=event.call_seq,
    )
