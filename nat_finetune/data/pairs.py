"""Scored candidates to preference pairs: strictly ordered, one context on both sides, everything left out counted.

A turn is a rollout's turn id. "Reaches a threshold" allows a relative 1e-9: 0.3 - 0.2 reaches 0.1, and 0.1 + 0.2 against 0.3
is a tie.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from nat_finetune.data.keys import context_key, example_key, turn_key
from nat_finetune.data.trajectories import is_inside, is_target
from nat_finetune.errors import DataError
from nat_finetune.types import (
    Candidate,
    CandidateScored,
    Dropped,
    DropReason,
    ModelCall,
    PreferencePair,
    Provenance,
    Rollout,
    Target,
    as_messages,
)

RELATIVE = 1e-9


@dataclass(frozen=True, slots=True)
class PairRules:
    """How candidates of a turn become pairs; NAT's fields."""

    step_name: str = ""
    """Name of the scored candidates that are read from rollouts; records have none."""
    exhaustive: bool = True
    """All unordered pairs; False: only the best against the worst."""
    min_score_diff: float = 0.0
    min_chosen_score: float | None = None
    """The better of two bad answers can still be unfit: least score of the chosen one."""
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


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A valid candidate among those of its turn."""

    candidate: Candidate
    rank: int
    """0 for the highest score; equal scores as they were emitted."""
    context: str
    """Key of its context."""


class PairBuilder:
    """Turns rollouts into pairs, one rollout at a time; `counts` says what of."""

    def __init__(self, rules: PairRules, target: Target) -> None:
        self._rules = rules
        self._target = target
        self._paired: set[str] = set()
        self.counts = PairCounts()

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[PreferencePair | Dropped]:
        """Pairs and drops, in the order of the rollouts.

        Raises:
            DataError: candidates were emitted, but none under the rules' step name; names those that were.
        """
        emitted: set[str] = set()
        for rollout in rollouts:
            emitted |= {event.step_name for event in rollout.events if isinstance(event, CandidateScored)}
            for made in self._rollout(rollout):
                self._count(made)
                yield made
        require_step(emitted, self._rules.step_name)

    def _count(self, made: PreferencePair | Dropped) -> None:
        if isinstance(made, PreferencePair):
            self.counts.pairs += 1
            self._paired.add(example_key(made.provenance.example_id))
            self.counts.examples_with_pair = len(self._paired)
        elif made.reason is DropReason.SINGLE_CANDIDATE:
            self.counts.single_candidate += 1
        elif made.reason is DropReason.SCORE_DIFF:
            self.counts.score_diff += 1

    def _rollout(self, rollout: Rollout) -> Iterator[PreferencePair | Dropped]:
        for found in candidate_sets(rollout, self._rules.step_name, self._target):
            if isinstance(found, Dropped):
                yield found
                continue
            self.counts.turns += 1
            self.counts.candidates += len(found)
            yield from self._turn(rollout, found)

    def _turn(self, rollout: Rollout, candidates: Sequence[Candidate]) -> Iterator[PreferencePair | Dropped]:
        turn_id = candidates[0].turn_id
        where = Provenance(example_id=rollout.example_id, rollout_id=rollout.rollout_id, turn_id=turn_id)
        yield from pairs_of(candidates, self._rules, where, set_id=f"{rollout.rollout_id}/{turn_id!r}")


def candidate_sets(rollout: Rollout, step_name: str, target: Target) -> Iterator[list[Candidate] | Dropped]:
    """The valid candidates of each turn of a rollout, after those that can't be used."""
    calls = {call.seq: call for call in rollout.model_calls}
    turns: dict[tuple[str, str | int], list[Candidate]] = {}
    emitted: Counter[tuple[str, str | int]] = Counter()
    for event in rollout.events:
        if not isinstance(event, CandidateScored) or event.step_name != step_name:
            continue
        call = calls.get(event.call_seq) if event.call_seq is not None else None
        reason = _problem(event) or (DropReason.OUTSIDE_TARGET if _outside(event, call, target) else None)
        if reason is not DropReason.NO_TURN_ID:
            emitted[turn_key(event.turn_id)] += 1
        if reason is not None:
            detail = f"turn {event.turn_id!r}: candidate {event.candidate_index!r}"
            yield Dropped("candidate", reason, detail, rollout.example_id, rollout.rollout_id, event.call_seq)
            continue
        key = turn_key(event.turn_id)
        turns.setdefault(key, []).append(_candidate(event, emitted[key] - 1, rollout, call))
    yield from turns.values()


def require_step(emitted: Collection[str], step_name: str) -> None:
    """Find candidates under the step name, where there were any.

    Raises:
        DataError: none was emitted under it; names those that were.
    """
    if emitted and step_name not in emitted:
        names = ", ".join(repr(name) for name in sorted(emitted))
        raise DataError(
            f"step_name_not_emitted: nothing emitted a candidate under ttc_step_name {step_name!r}; "
            f"the names that were emitted: {names}"
        )


def _outside(event: CandidateScored, call: ModelCall | None, target: Target) -> bool:
    """Whether another model or function answered (the opponent's, say).

    A candidate that names no recorded call is judged by where it was emitted.
    """
    if call is not None:
        return not is_target(call, target)
    return not is_inside(event.path, target)


def pairs_of(
    candidates: Sequence[Candidate], rules: PairRules, where: Provenance, *, set_id: str, ranked: bool = False
) -> Iterator[PreferencePair | Dropped]:
    """Pairs of one candidate set, and every couple that is none.

    Args:
        candidates: The set, at least one.
        rules: Which couples become pairs.
        where: What all pairs of the set have in common.
        set_id: The set's name.
        ranked: The scores only order the candidates: a pair has neither scores nor margin nor reward.
    """
    if len(candidates) < 2:
        only = candidates[0]
        yield _dropped("turn", DropReason.SINGLE_CANDIDATE, f"turn {only.turn_id!r}", where, only.call_seq)
        return
    by_score = sorted(candidates, key=lambda candidate: -candidate.score)
    in_order = [_Ranked(candidate, rank, context_key(candidate.context)) for rank, candidate in enumerate(by_score)]
    couples = list(combinations(in_order, 2)) if rules.exhaustive else [(in_order[0], in_order[-1])]
    kept: list[tuple[_Ranked, _Ranked]] = []
    for better, worse in couples:
        reason = _pair_problem(better, worse, rules)
        if reason is None:
            kept.append((better, worse))
        else:
            yield _dropped("pair", reason, _which(better.candidate, worse.candidate), where)
    kept.sort(key=lambda pair: (pair[1].candidate.score - pair[0].candidate.score, pair[0].rank, pair[1].rank))
    limit = rules.max_pairs_per_turn
    for better, worse in kept[:limit]:
        pair = _pair(better.candidate, worse.candidate, replace(where, candidates=len(candidates)), rules, set_id)
        yield replace(pair, chosen_score=None, rejected_score=None, margin=None, reward=None) if ranked else pair
    for better, worse in kept[len(kept[:limit]) :]:
        yield _dropped("pair", DropReason.MAX_PAIRS_PER_TURN, _which(better.candidate, worse.candidate), where)


def _pair_problem(better: _Ranked, worse: _Ranked, rules: PairRules) -> DropReason | None:
    chosen, rejected = better.candidate, worse.candidate
    if math.isclose(chosen.score, rejected.score, rel_tol=RELATIVE):
        return DropReason.TIE
    if not reaches(chosen.score - rejected.score, rules.min_score_diff):
        return DropReason.SCORE_DIFF
    if rules.min_chosen_score is not None and not reaches(chosen.score, rules.min_chosen_score):
        return DropReason.MIN_CHOSEN_SCORE
    if better.context != worse.context:
        return DropReason.CONTEXT_DIFFERS
    if chosen.completion == rejected.completion:
        return DropReason.IDENTICAL_TEXT
    if answer_in_context(chosen.context, chosen.completion, rejected.completion):
        return DropReason.ANSWER_IN_CONTEXT
    return None


def _pair(better: Candidate, worse: Candidate, where: Provenance, rules: PairRules, set_id: str) -> PreferencePair:
    difference = better.score - worse.score
    # Sampled ids stand for the texts only where they differ and follow the same prompt.
    exact = better.prompt_ids == worse.prompt_ids and better.completion_ids != worse.completion_ids
    exact = exact and better.completion_ids is not None and worse.completion_ids is not None
    return PreferencePair(
        context=better.context,
        context_text=better.context_text,
        chosen=better.completion,
        rejected=worse.completion,
        chosen_score=better.score,
        rejected_score=worse.score,
        margin=difference,
        reward=difference if rules.reward_from_score_diff else better.score,
        set_id=set_id,
        prompt_ids=better.prompt_ids if exact else None,
        chosen_ids=better.completion_ids if exact else None,
        rejected_ids=worse.completion_ids if exact else None,
        provenance=replace(
            where,
            chosen_index=better.index,
            rejected_index=worse.index,
            chosen_call=better.call_seq,
            rejected_call=worse.call_seq,
        ),
    )


def reaches(value: float, threshold: float) -> bool:
    """Whether `value >= threshold`, or equal to it up to a relative 1e-9.

    >>> reaches(0.3 - 0.2, 0.1), reaches(0.099, 0.1)
    (True, False)
    """
    return value >= threshold or math.isclose(value, threshold, rel_tol=RELATIVE)


def answer_in_context(context: Sequence[Mapping[str, Any]], chosen: str, rejected: str) -> bool:
    """Whether the context ends with the assistant saying one of the two answers."""
    last = context[-1] if context else {}
    return last.get("role") == "assistant" and last.get("content") in (chosen, rejected)


def _which(better: Candidate, worse: Candidate) -> str:
    """Which couple of a set it is, for the list of what was dropped."""
    return f"turn {better.turn_id!r}: candidate {better.index} over {worse.index}"


def _dropped(
    what: Literal["turn", "pair"], reason: DropReason, detail: str, where: Provenance, call_seq: int | None = None
) -> Dropped:
    return Dropped(what, reason, detail, where.example_id, where.rollout_id, call_seq, record=where.record)


def _problem(event: CandidateScored) -> DropReason | None:
    """The first reason why a candidate can't be used."""
    score, context, output = event.score, event.input, event.output
    checks = (
        (isinstance(event.turn_id, str | int) and not isinstance(event.turn_id, bool), DropReason.NO_TURN_ID),
        (score is not None, DropReason.NO_SCORE),
        (is_number(score), DropReason.SCORE_NOT_A_NUMBER),
        (context is not None, DropReason.NO_CONTEXT),
        (_is_context(context), DropReason.CONTEXT_NOT_MESSAGES),
        (isinstance(output, str) and bool(output.strip()), DropReason.OUTPUT_NOT_TEXT),
    )
    return next((reason for fine, reason in checks if not fine), None)


def is_number(score: Any) -> bool:
    """Whether a score can be compared: finite, and no truth value."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return False
    return abs(score) <= sys.float_info.max  # false for NaN, infinities, and integers that no float can hold


def _is_context(context: Any) -> bool:
    if isinstance(context, str):
        return True
    return isinstance(context, list | tuple) and all(isinstance(message, Mapping) for message in context)


def _candidate(event: CandidateScored, position: int, rollout: Rollout, call: ModelCall | None) -> Candidate:
    sampled = call if call is not None and _says(call, event.output) else None
    index = event.candidate_index
    return Candidate(
        turn_id=event.turn_id,
        index=index if isinstance(index, int) and not isinstance(index, bool) else position,
        context=as_messages(event.input),
        context_text=event.input if isinstance(event.input, str) else None,
        completion=event.output,
        score=float(event.score),
        prompt_ids=sampled.prompt_ids if sampled else None,
        completion_ids=sampled.completion_ids if sampled else None,
        rollout_id=rollout.rollout_id,
        call_seq=event.call_seq,
    )


def _says(call: ModelCall, text: str) -> bool:
    """Whether the text is the call's whole reply: the sampled ids do not stand for a part of it, or for what was made of it."""
    content = call.message.get("content")
    return isinstance(content, str) and content.strip() == text.strip()
