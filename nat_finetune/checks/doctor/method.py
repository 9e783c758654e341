"""Which method fits the signal that is there: ranked alternatives, repeated scores, several rewards, answers to imitate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import pvariance

from nat_finetune.checks.doctor.chosen import adapter_of
from nat_finetune.checks.doctor.finding import Finding, note, warning
from nat_finetune.checks.doctor.signal import Seen
from nat_finetune.config.component import ItemKind
from nat_finetune.config.schema import RunConfig
from nat_finetune.data.keys import example_key
from nat_finetune.data.signal import scored_attempts
from nat_finetune.types import CandidateScored, Example

DOMINATES = 0.95
"""Share of the summed reward's variance that one reward may have."""
_NAMES: Mapping[ItemKind, str] = {"pair": "DPO", "group": "GRPO", "demonstration": "SFT"}


@dataclass(frozen=True, slots=True)
class Method:
    """A method that could be used, and why."""

    name: str
    makes: ItemKind
    reason: str


def method_findings(config: RunConfig, seen: Seen, examples: Sequence[Example]) -> Iterator[Finding]:
    """What the signal is for, held against what is configured."""
    methods = fitting_methods(config, seen, examples)
    key = "finetuning.trajectory_builder"
    if not methods:
        message = "no signal for any method: no ranked candidates, no reward that differs between rollouts, no targets"
        fix = "emit scored candidates, or a reward that tells rollouts apart, or give the examples targets"
        yield warning("method.other", message, fix, key)
        return
    reasons = "; ".join(f"{method.name}: {method.reason}" for method in methods)
    adapter = adapter_of(config)
    apart = adapter is not None and adapter.compares_rewards_apart()
    chosen = "GDPO" if apart else _NAMES[seen.makes]
    mine = [method for method in methods if method.makes == seen.makes]
    if mine:
        yield note("method.fits", f"the signal that was seen fits {reasons}", f"configured is {chosen}", key)
    else:
        message = f"{chosen} has nothing to learn from here, but the signal fits {reasons}"
        yield warning("method.other", message, f"use {methods[0].name}, or mend the signal", key)
    if seen.makes == "group" and len(seen.target.rewards) > 1:
        yield from _several(seen, apart=apart)


def fitting_methods(config: RunConfig, seen: Seen, examples: Sequence[Example]) -> list[Method]:
    """The methods that the signal is for, the one with the most direct signal first."""
    found = []
    ranked, turns = _ranked_turns(seen)
    if ranked:
        found.append(Method("DPO", "pair", f"{ranked} of {turns} turns have candidates of one context with different scores"))
    spreads = _spreads(seen)
    differing = sum(any(row.values()) for row in spreads.values())
    if differing:
        reason = f"rewards differ between repeated rollouts of {differing} of {len(spreads)} examples"
        several = [name for name in seen.target.reward_names if any(row[name] for row in spreads.values())]
        if len(several) > 1:
            found.append(Method("GDPO", "group", f"{reason}, in {len(several)} rewards ({', '.join(several)})"))
        else:
            found.append(Method("GRPO", "group", reason))
    texts = sum(isinstance(example.target, str) for example in examples)
    if texts:
        found.append(
            Method(
                "SFT",
                "demonstration",
                f"{texts:,} of {len(examples):,} examples have a target text, if that is what to imitate",
            )
        )
    elif seen.makes == "demonstration" and seen.items:
        found.append(Method("SFT", "demonstration", f"{len(seen.items)} good answers were seen"))
    if seen.makes == "pair" and seen.items and not ranked:
        found.insert(0, Method("DPO", "pair", f"{len(seen.items):,} preference pairs of records"))
    return found


def _ranked_turns(seen: Seen) -> tuple[int, int]:
    """Turns whose candidates differ in score, and all turns with candidates."""
    scores: dict[str, set[float]] = defaultdict(set)
    for rollout in seen.rollouts:
        for event in rollout.events:
            if isinstance(event, CandidateScored):
                known = scores[f"{rollout.rollout_id} {event.step_name} {event.turn_id!r}"]
                if isinstance(event.score, int | float) and isfinite(event.score):
                    known.add(float(event.score))
    return sum(len(known) > 1 for known in scores.values()), len(scores)


def _spreads(seen: Seen) -> dict[str, dict[str, float]]:
    """By example with repeated rollouts: the variance of each reward."""
    values: dict[str, dict[str, list[float]]] = {}
    for rollout in scored_attempts(seen.rollouts):
        row = values.setdefault(example_key(rollout.example_id), {name: [] for name in seen.target.reward_names})
        for name in seen.target.reward_names:
            value = rollout.rewards.get(name)
            if value is not None:
                row[name].append(value)
    return {
        key: {name: pvariance(known) if len(known) > 1 else 0.0 for name, known in row.items()}
        for key, row in values.items()
        if any(len(known) > 1 for known in row.values())
    }


def _several(seen: Seen, *, apart: bool) -> Iterator[Finding]:
    """Several rewards: one that never differs, and one that drowns the others in a sum."""
    spreads = _spreads(seen)
    weights = {term.name: term.weight for term in seen.target.rewards}
    share = {name: weight**2 * sum(row[name] for row in spreads.values()) for name, weight in weights.items()}
    if not sum(share.values()):
        return
    for name, variance in share.items():
        if not variance:
            message = f"{name} does not differ inside any of {len(spreads)} groups: it teaches nothing there"
            fix = "fine where it is met already; else see whether its evaluator can say anything else (--examples for more)"
            yield note("reward.component-flat", message, fix, "finetuning.reward_functions")
    largest = max(share, key=lambda name: share[name])
    if not apart and share[largest] > DOMINATES * sum(share.values()):
        message = f"{largest} has {share[largest] / sum(share.values()):.0%} of the summed reward's variance: it decides alone"
        fix = "compare rewards apart (`algorithm: {name: gdpo}`), or set weights by their ranges"
        yield warning("reward.one-dominates", message, fix, "finetuning.reward_functions")
