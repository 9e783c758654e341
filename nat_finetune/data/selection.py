"""Which pairs of a collection are trained, and how much each counts.

In this order: pairs whose context ends with one of their answers, contradictions, duplicates, a maximum, weights. What people
said and what a scorer said are told apart (`is_judgment`), for repetition means different things: two reviewers who agree are
two judgments, a scorer that is asked twice is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nat_finetune.data.keys import context_key
from nat_finetune.data.pairs import answer_in_context
from nat_finetune.data.preparation import PairKey, draw_pairs, dropped_pair, pair_key
from nat_finetune.types import Dropped, DropReason, PreferencePair

OnContradiction = Literal["keep", "drop"]
PairWeighting = Literal["pair", "set"]


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """What to do with the pairs of a collection; None: by what they are."""

    deduplicate: bool = False
    on_contradiction: OnContradiction | None = None
    """None: people's labels are kept, scored candidates dropped."""
    max_pairs: int | None = None
    weighting: PairWeighting | None = None
    """None: `pair` for people's labels, `set` for scored candidates."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The pairs that are trained, and what was left out or merged."""

    pairs: list[PreferencePair]
    dropped: list[Dropped]
    contradictions: int
    """Couples of answers that are preferred both ways in one context, whether kept or dropped."""
    weighting: PairWeighting
    """The rule that was applied."""


def is_judgment(pair: PreferencePair) -> bool:
    """Whether a person said it: a record that only ranks. A margin means that something was scored."""
    return pair.provenance.record is not None and pair.margin is None


def pair_cluster(pair: PreferencePair) -> str:
    """What the pair is not independent of: its candidate set; its context where a person judged.

    Intervals of anything about pairs resample these, not pairs.
    """
    return context_key(pair.context) if pair.set_id is None or is_judgment(pair) else pair.set_id


def select_pairs(pairs: Sequence[PreferencePair], rules: SelectionRules, *, seed: int) -> Selected:
    """Apply the rules; `seed` is of the draw of `max_pairs`. The order of the pairs is kept."""
    kept, dropped = [], []
    for pair in pairs:
        if answer_in_context(pair.context, pair.chosen, pair.rejected):
            dropped.append(dropped_pair(pair, DropReason.ANSWER_IN_CONTEXT))
        else:
            kept.append(pair)
    both_ways = _contradicting(kept)
    kept, left_out = _without_contradictions(kept, both_ways, rules.on_contradiction)
    dropped += left_out
    if rules.deduplicate:
        kept, left_out = deduplicate(kept)
        dropped += left_out
    if rules.max_pairs is not None:
        kept, left_out = draw_pairs(kept, rules.max_pairs, seed=seed)
        dropped += left_out
    weighting = rules.weighting or ("pair" if all(map(is_judgment, kept)) else "set")
    return Selected(weighted(kept, weighting), dropped, len(both_ways) // 2, weighting)


def contradictions(pairs: Sequence[PreferencePair]) -> int:
    """How many couples of answers are preferred both ways in one context."""
    return len(_contradicting(pairs)) // 2


def deduplicate(pairs: Sequence[PreferencePair]) -> tuple[list[PreferencePair], list[Dropped]]:
    """Of pairs with equal context, chosen and rejected keep the first; a reversed pair is no duplicate.

    What further people said is merged into it: their weight is added and their records are named in its provenance.
    """
    first: dict[PairKey, int] = {}
    kept: list[PreferencePair] = []
    further: dict[int, list[PreferencePair]] = {}
    dropped = []
    for pair in pairs:
        key = pair_key(pair)
        if key not in first:
            first[key] = len(kept)
            kept.append(pair)
        elif is_judgment(pair) and is_judgment(kept[first[key]]):
            further.setdefault(first[key], []).append(pair)
            dropped.append(dropped_pair(pair, DropReason.MERGED, f"says the same as {kept[first[key]].provenance.record}"))
        else:
            dropped.append(dropped_pair(pair, DropReason.DUPLICATE))
    for place, others in further.items():
        kept[place] = _merged(kept[place], others)
    return kept, dropped


def judgments(pair: PreferencePair) -> tuple[str, ...]:
    """The reviewer records that the pair rests on; none where no person said it."""
    where = pair.provenance
    return (where.record, *where.further_records) if is_judgment(pair) and where.record is not None else ()


def weighted(pairs: Sequence[PreferencePair], weighting: PairWeighting) -> list[PreferencePair]:
    """The pairs with their weights.

    `set` divides a pair's weight by the number of pairs of its candidate set, so that every set counts the same. All weights
    are then multiplied by one constant, so that their mean is what a judgment weighed on average before: neither merging nor
    the division changes how large an update is.
    """
    if not pairs:
        return []
    sizes: dict[str, int] = {}
    for pair in pairs:
        if pair.set_id is not None:
            sizes[pair.set_id] = sizes.get(pair.set_id, 0) + 1
    weights = []
    for pair in pairs:
        share = sizes[pair.set_id] if weighting == "set" and pair.set_id is not None else 1
        weights.append(pair.weight / share)
    each = math.fsum(pair.weight for pair in pairs) / sum(max(1, len(judgments(pair))) for pair in pairs)
    constant = each * len(pairs) / math.fsum(weights) if math.fsum(weights) else 1.0
    return [replace(pair, weight=weight * constant) for pair, weight in zip(pairs, weights, strict=True)]


def _contradicting(pairs: Sequence[PreferencePair]) -> set[PairKey]:
    """Keys (context, chosen, rejected) whose reverse is there too."""
    keys = {pair_key(pair) for pair in pairs}
    return {(context, chosen, rejected) for context, chosen, rejected in keys if (context, rejected, chosen) in keys}


def _without_contradictions(
    pairs: Sequence[PreferencePair], both_ways: set[PairKey], rule: OnContradiction | None
) -> tuple[list[PreferencePair], list[Dropped]]:
    kept, dropped = [], []
    for pair in pairs:
        keep = is_judgment(pair) if rule is None else rule == "keep"
        if keep or pair_key(pair) not in both_ways:
            kept.append(pair)
        else:
            dropped.append(dropped_pair(pair, DropReason.CONTRADICTION, "the reverse is preferred elsewhere in this context"))
    return kept, dropped


def _merged(pair: PreferencePair, others: Sequence[PreferencePair]) -> PreferencePair:
    records = tuple(other.provenance.record for other in others if other.provenance.record is not None)
    weight = pair.weight + math.fsum(other.weight for other in others)
    return replace(pair, weight=weight, provenance=replace(pair.provenance, further_records=records))
