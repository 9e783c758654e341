"""What a collection of pairs is worth: how much of it is independent, and whether length alone would explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nat_finetune.data.intervals import estimate
from nat_finetune.data.keys import context_key
from nat_finetune.data.selection import PairWeighting, Selected, judgments, pair_cluster
from nat_finetune.types import Estimate, PreferencePair

PREDICTS = 0.6
"""Length is said to predict the label where the whole interval of its accuracy is above this."""
_DRAWS = 50_000_000
"""Clusters times resamples: with more clusters fewer resamples tell as much."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Chosen against rejected, in characters."""

    chosen_median: float
    rejected_median: float
    longer_chosen: Estimate
    """Share of pairs whose chosen text is the longer one, a tie counting half; its interval is over candidate sets."""

    @property
    def accuracy(self) -> Estimate:
        """How often the better of the rules "the longer one" and "the shorter one" finds the chosen text."""
        found = self.longer_chosen
        if found.mean is None or found.mean >= 0.5:
            return found
        low, high = (None if found.high is None else 1 - found.high), (None if found.low is None else 1 - found.low)
        return Estimate(1 - found.mean, low, high, found.n)

    @property
    def predicts(self) -> bool:
        """Whether length alone predicts which text is chosen."""
        return self.accuracy.low is not None and self.accuracy.low > PREDICTS


@dataclass(frozen=True, slots=True)
class Worth:
    """What the pairs of one collection rest on."""

    pairs: int
    contexts: int
    """Distinct ones."""
    candidate_sets: int
    """Sets of scored candidates with at least one pair."""
    candidates: int
    """Scored candidates of those sets."""
    judgments: int
    """Reviewer records, each one person's judgment."""
    contradictions: int
    weighting: PairWeighting
    lengths: Lengths | None
    """None without pairs."""


def worth_of(selected: Selected, *, seed: int, confidence: float = 0.95) -> Worth:
    """Count what the selected pairs rest on; `seed` is of the interval's resampling."""
    sets: dict[str, int] = {}
    records: set[str] = set()
    for pair in selected.pairs:
        said = judgments(pair)
        records.update(said)
        if not said:
            # A pair that names no set is one of its own: two candidates.
            sets[pair.set_id or f"pair {len(sets)}"] = pair.provenance.candidates or 2
    return Worth(
        pairs=len(selected.pairs),
        contexts=len({context_key(pair.context) for pair in selected.pairs}),
        candidate_sets=len(sets),
        candidates=sum(sets.values()),
        judgments=len(records),
        contradictions=selected.contradictions,
        weighting=selected.weighting,
        lengths=lengths_of(selected.pairs, seed=seed, confidence=confidence) if selected.pairs else None,
    )


def lengths_of(pairs: Sequence[PreferencePair], *, seed: int, confidence: float = 0.95) -> Lengths:
    """Lengths of chosen and rejected texts of at least one pair."""
    longer: dict[str, float | None] = {}
    clusters: dict[str, str] = {}
    for place, pair in enumerate(pairs):
        difference = len(pair.chosen) - len(pair.rejected)
        longer[str(place)] = 0.5 if difference == 0 else float(difference > 0)
        clusters[str(place)] = pair_cluster(pair)
    resamples = min(10_000, max(200, _DRAWS // len(set(clusters.values()))))
    return Lengths(
        chosen_median=median(len(pair.chosen) for pair in pairs),
        rejected_median=median(len(pair.rejected) for pair in pairs),
        longer_chosen=estimate(longer, clusters, seed=seed, confidence=confidence, resamples=resamples),
    )


def length_warning(lengths: Lengths) -> str | None:
    """What to say where length alone predicts the label; None where it does not."""
    found = lengths.accuracy
    if not lengths.predicts or found.mean is None or found.low is None or found.high is None:
        return None
    which = "longer" if (lengths.longer_chosen.mean or 0) >= 0.5 else "shorter"
    return (
        f"length alone predicts the label: the {which} answer is the chosen one in {found.mean:.1%} of the pairs "
        f"[{found.low:.1%}, {found.high:.1%}] (median {lengths.chosen_median:,.0f} against {lengths.rejected_median:,.0f} "
        "characters): what is learned may be length; compare answers of like length, or use a loss per length (sigmoid_norm)"
    )
