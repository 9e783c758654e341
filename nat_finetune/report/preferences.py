"""What a run's preference pairs were, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nat_finetune.config.schema import PAIR_METRICS, FinetuningConfig
from nat_finetune.data.seeds import derive_seed
from nat_finetune.data.selection import Selected
from nat_finetune.data.worth import length_warning, worth_of
from nat_finetune.types import EvalResult


def preferences_metrics(selected: Selected, config: FinetuningConfig) -> tuple[dict[str, Any], list[str]]:
    """What a step's line in `metrics.jsonl` says of its pairs, and what to warn of."""
    worth = worth_of(selected, seed=derive_seed(config.seed, "lengths"), confidence=config.confidence)
    warning = length_warning(worth.lengths) if worth.lengths is not None else None
    return asdict(worth), [] if warning is None else [warning]


def preferences_account(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences about the pairs of all steps; none for a run without pairs."""
    found = [step["preferences"] for step in steps if step.get("preferences")]
    if not found:
        return []
    total = {name: sum(worth[name] for worth in found) for name in _COUNTED}
    return list(_sentences(total, found))


def unknown_pairs(result: EvalResult | None) -> list[str]:
    """What to say of held-out pairs that could not be scored."""
    scores = result.scores.get(PAIR_METRICS[0], {}) if result is not None else {}
    unknown = sum(value is None for value in scores.values())
    if not unknown:
        return []
    return [f"{unknown:,} of {len(scores):,} held-out pairs could not be scored (too long for an update): they count nowhere"]


_FALLEN = -1.0
"""Nats by which a chosen completion may be less probable than under the reference before it is worth a word."""


def falling_warning(curve: Sequence[Mapping[str, float]]) -> str | None:
    """What to say of an update after which the chosen completions are less probable than before; None where they are not."""
    last = curve[-1].get("chosen_logratio") if curve else None
    if last is None or last >= _FALLEN:
        return None
    return (
        f"the chosen completions became less probable than under the reference, by more than {-_FALLEN:g} nat on average: "
        "the margin grows because the rejected ones fall faster, and probability goes to answers that nobody chose; set "
        "sft_loss_weight, lower the learning rate or the passes over the pairs, or raise beta"
    )


_COUNTED = ("pairs", "contexts", "candidate_sets", "candidates", "judgments", "contradictions")


def _sentences(total: Mapping[str, int], found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    sets = f"{total['candidate_sets']:,} candidate sets of {total['candidates']:,} scored candidates"
    people = f"{total['judgments']:,} human judgments"
    origin = f"{sets}, and {people}" if total["candidate_sets"] else people
    yield f"{total['pairs']:,} pairs from {origin}"
    anew = f" (those of each of {len(found)} updates counted anew)" if len(found) > 1 else ""
    weights = "each candidate set weighs the same" if found[-1]["weighting"] == "set" else "each pair weighs what it was given"
    observations = total["candidates"] + total["judgments"]
    yield (
        f"{total['contexts']:,} contexts, {observations:,} observations{anew}; {weights}, and intervals are over what is "
        "independent, not over pairs"
    )
    if total["contradictions"]:
        yield f"{total['contradictions']:,} couples of answers were preferred both ways in the same context"
    yield from (sentence for worth in found[-1:] for sentence in _lengths(worth["lengths"]))


def _lengths(lengths: Mapping[str, Any] | None) -> Iterator[str]:
    if lengths is None:
        return
    longer = lengths["longer_chosen"]
    interval = "" if longer["low"] is None else f" [{longer['low']:.1%}, {longer['high']:.1%}]"
    medians = f"median {lengths['chosen_median']:,.0f} characters chosen, {lengths['rejected_median']:,.0f} rejected"
    yield f"the longer answer is the chosen one in {longer['mean']:.1%}{interval} of the pairs; {medians}"
