"""Does a reward tell answers that are known to be good from answers that are known to be bad? Pure: scores in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from nat_finetune.data.keys import example_key
from nat_finetune.data.signal import ROUNDING
from nat_finetune.types import ExampleId

GOLD, GIVEN = "gold", "given as bad"
REPEATS = 20
"""How often a wrong answer is repeated."""


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """An answer of which it is known what it is worth, and what the reward says of it."""

    kind: str
    """`gold`, `given as bad`, or how a gold answer was corrupted."""
    example_id: ExampleId
    output: Any
    reward: float | None = None
    why: str | None = None
    """Why there is no reward."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What known answers say of a reward."""

    examples: int
    """With a gold answer that could be scored."""
    means: dict[str, float]
    """By kind of answer."""
    problems: tuple[str, ...] = ()
    """Why the reward should not be trained on."""
    notes: tuple[str, ...] = ()


def corrupted(gold: Any, other: Any) -> Iterator[tuple[str, Any]]:
    """Wrong answers made of a gold one and of another example's, by the way they were made; never the gold answer itself.

    >>> dict(corrupted("42", "7"))["swapped"], dict(corrupted(3, 4))["changed"]
    ('7', 4)
    """
    made: list[tuple[str, Any]] = [("swapped", other)] if other is not None else []
    if isinstance(gold, str):
        wrong = other if isinstance(other, str) and other != gold else gold[::-1]
        made += [("empty", ""), ("reversed", gold[::-1]), ("wrong and repeated", " ".join([wrong] * REPEATS))]
    elif isinstance(gold, bool):
        made.append(("changed", not gold))
    elif isinstance(gold, int | float):
        made.append(("changed", gold + 1))
    elif isinstance(gold, list | dict | tuple):
        made.append(("empty", type(gold)()))
    yield from ((kind, output) for kind, output in made if output != gold)


def judge(answers: Sequence[KnownAnswer], best: float | None) -> Findings:
    """Gold answers must earn `best` (where it is known) and more than every bad answer of their example.

    Corruptions may happen to be as good as gold for a reward that looks at something else (a format): only where none of them
    earns less, or one earns more, is that a problem. Bad answers that somebody gave must all earn less.
    """
    known = [answer for answer in answers if answer.reward is not None]
    gold = {example_key(a.example_id): a for a in known if a.kind == GOLD}
    if not gold:
        return Findings(0, {}, notes=(_nothing_scored(answers),))
    kinds = dict.fromkeys(answer.kind for answer in known)
    means = {kind: fmean(a.reward for a in known if a.kind == kind and a.reward is not None) for kind in kinds}
    pairs = [(gold[key], a) for a in known if a.kind != GOLD and (key := example_key(a.example_id)) in gold]
    problems = [*_below_best(list(gold.values()), best), *_not_above(pairs)]
    tied = [kind for kind in kinds if kind != GOLD and all(_gap(g, b) <= ROUNDING for g, b in pairs if b.kind == kind)]
    notes = [f"the reward does not look at what makes these answers wrong: {', '.join(tied)}"] if tied and not problems else []
    unscored = sum(1 for a in answers if a.reward is None)
    notes += [f"{unscored} of {len(answers)} known answers got no score"] if unscored else []
    if not pairs:
        notes.append("there was no bad answer to compare with")
    return Findings(len(gold), means, tuple(problems), tuple(notes))


def _below_best(gold: Sequence[KnownAnswer], best: float | None) -> Iterator[str]:
    if best is None:
        return
    low = [a for a in gold if a.reward is not None and a.reward < best - ROUNDING * max(1.0, abs(best))]
    if low:
        yield (
            f"{len(low)} of {len(gold)} gold answers score less than the maximum {best:g}, such as {_cut(low[0].output)} of "
            f"example {low[0].example_id!r}: {low[0].reward:g}"
        )


def _not_above(pairs: Sequence[tuple[KnownAnswer, KnownAnswer]]) -> Iterator[str]:
    """What bad answers earn too much."""
    given = [(g, b) for g, b in pairs if b.kind == GIVEN and _gap(g, b) <= ROUNDING]
    above = [(g, b) for g, b in pairs if b.kind != GIVEN and _gap(g, b) < -ROUNDING]
    for found, what in ((given, "score no less than the gold answer"), (above, "score more than the gold answer")):
        if found:
            g, b = found[0]
            yield (
                f"{len(found)} of {len(pairs)} bad answers {what}, such as ({b.kind}) {_cut(b.output)} of example "
                f"{b.example_id!r}: {b.reward:g}, gold {_cut(g.output)}: {g.reward:g}"
            )
    made = [(g, b) for g, b in pairs if b.kind != GIVEN]
    if made and not above and all(_gap(g, b) <= ROUNDING for g, b in made):
        yield f"none of {len(made)} corrupted answers scores less than its gold answer: the reward tells nothing apart"


def _gap(gold: KnownAnswer, bad: KnownAnswer) -> float:
    return (gold.reward or 0.0) - (bad.reward or 0.0)


def _nothing_scored(answers: Sequence[KnownAnswer]) -> str:
    reasons = [a.why for a in answers if a.kind == GOLD and a.why is not None]
    if not any(a.kind == GOLD for a in answers):
        return "no example has a gold answer"
    return "the evaluator can't score a gold answer by itself" + (f" ({reasons[0]})" if reasons else " (it says None)")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
