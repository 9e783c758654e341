"""From a judgment to preference pairs, by the rules that scored candidates of a turn follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

from nat_finetune.data.pairs import PairRules, is_number, pairs_of
from nat_finetune.data.preferences.judgment import Answer, Judgment
from nat_finetune.errors import DataError
from nat_finetune.types import Candidate, Dropped, DropReason, Message, PreferencePair, Provenance, as_messages

SeveralMessages = Literal["refuse", "first_difference"]


@dataclass(slots=True)
class SeveralCounts:
    """Records whose completions are of several messages."""

    records: int = 0
    later_messages: int = 0
    """Assistant messages behind the one that is compared: each follows a context of its own."""


def judgment_pairs(
    judgment: Judgment, rules: PairRules, where: Provenance, several: SeveralMessages, counts: SeveralCounts
) -> Iterator[PreferencePair | Dropped]:
    """Pairs of one record, and what in it makes none.

    Raises:
        DataError: the record asks for what a pair can't hold; says what.
    """
    context, context_text = as_messages(judgment.context), judgment.context if isinstance(judgment.context, str) else None
    answers = list(judgment.answers)
    if any(len(answer.messages) > 1 for answer in answers):
        shared, answers = _first_difference(answers, several, counts)
        context, context_text = (*context, *shared), None if shared else context_text
    candidates: list[Candidate] = []
    at = (where.record or "", where.example_id)
    for answer in answers:
        reason = _score_problem(answer.score)
        if reason is None:
            text = _text(answer)
            candidates.append(Candidate("", answer.index, context, context_text, text, float(answer.score)))
        else:
            yield Dropped("candidate", reason, *at)
    _check_end(context, candidates)
    if candidates:
        yield from pairs_of(candidates, rules, where, set_id=where.record or "", ranked=judgment.ranked)


def _first_difference(
    answers: Sequence[Answer], several: SeveralMessages, counts: SeveralCounts
) -> tuple[tuple[Message, ...], list[Answer]]:
    """The messages that all completions begin with, and each one's next message: the one decision made in one context."""
    if several == "refuse":
        longest = max(len(answer.messages) for answer in answers)
        raise DataError(
            f"a completion has {longest} messages; `several_messages: first_difference` compares the first one in which "
            "the completions differ"
        )
    shortest = min(len(answer.messages) for answer in answers)
    first = answers[0].messages
    same = sum(1 for _ in takewhile(lambda at: all(a.messages[at] == first[at] for a in answers), range(shortest)))
    if same == shortest:
        raise DataError("a completion is the beginning of another: they don't differ in a message of the assistant")
    decisions = [replace(answer, messages=answer.messages[same : same + 1]) for answer in answers]
    roles = {answer.messages[0]["role"] for answer in decisions}
    if roles != {"assistant"}:
        raise DataError(f"the completions first differ in a message of {' and '.join(sorted(roles))}, not of the assistant")
    counts.records += 1
    counts.later_messages += sum(m["role"] == "assistant" for answer in answers for m in answer.messages[same + 1 :])
    return first[:same], decisions


def _text(answer: Answer) -> str:
    """The text of a completion of one message.

    Raises:
        DataError: it is not the assistant's, or calls tools: a pair compares texts.
    """
    (message,) = answer.messages
    if message["role"] != "assistant":
        raise DataError(f"a completion is a message of {message['role']!r}, expected 'assistant'")
    if message.get("tool_calls"):
        raise DataError("a completion calls tools; a preference pair compares texts")
    return str(message["content"])


def _check_end(context: Sequence[Message], candidates: Sequence[Candidate]) -> None:
    """Refuse a context that ends with the assistant; one of the answers there is left to `pairs_of`, which counts it."""
    last = context[-1]
    if last["role"] == "assistant" and last.get("content") not in {candidate.completion for candidate in candidates}:
        raise DataError("the context ends with a message of the assistant: a completion would be the second one in a row")


def _score_problem(score: Any) -> DropReason | None:
    if score is None:
        return DropReason.NO_SCORE
    if not is_number(score):
        return DropReason.SCORE_NOT_A_NUMBER
    return None
