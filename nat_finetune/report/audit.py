"""Is the reward what was meant? What a run's own figures say for and against it, in words, with what to do.

Nothing here proves anything: a long answer may be the better one, and answers to a yes-no question must repeat. Each finding
says what was seen, what it may mean, and how to find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from nat_finetune.report.trend import Points, Trend, falls, trend

LENGTH = 0.5
"""Correlation of a reward with length, inside groups, from which on length is a suspect."""
DOMINANT = 0.9
"""Share of the advantages from which on one of several rewards trains alone."""
SILENT = 0.02
REPEATED = 0.5
"""Share of answers that repeat another of their example."""
OPPOSED = -0.3

Steps = Sequence[Mapping[str, Any]]
Gains = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to look at."""

    kind: str
    """`length`, `dominance`, `repetition`, `drift`, `opposed` or `unwatched`."""
    found: str
    """What was seen, with its figure."""
    meaning: str
    """What it may mean."""
    advice: str
    figures: Mapping[str, float] = field(default_factory=dict)
    warning: bool = False
    """Whether the training as such is in doubt; otherwise it is a note."""


def audit(steps: Steps, trained: Sequence[str], held_out: Gains) -> list[Finding]:
    """All findings, warnings first; none where there is nothing to see, or nothing was scored.

    Args:
        steps: lines of `metrics.jsonl`.
        trained: names of the rewards that were trained.
        held_out: by "metric, on what set": the gain since before training, higher is better: mean, low, high, and `name` of the
            metric.
    """
    if not any(step["reward"] for step in steps):
        return []
    found = [
        *_drift(steps, trained, held_out),
        *_length(steps, trained),
        *_opposed(steps, trained),
        *_dominance(steps, trained),
        *_repetition(steps),
        *_unwatched(steps, trained, held_out),
    ]
    return sorted(found, key=lambda finding: not finding.warning)


def _means(steps: Steps, name: str) -> Points:
    return [
        (float(step["step"]), row["mean"])
        for step in steps
        if (row := step["reward"].get(name)) is not None and row.get("mean") is not None
    ]


def _responses(steps: Steps, key: str) -> Points:
    return [(float(s["step"]), value) for s in steps if (value := (s.get("response") or {}).get(key)) is not None]


def _rising(points: Points) -> bool:
    seen = trend(points)
    return seen.direction > 0 if seen is not None else len(points) > 1 and points[-1][1] > points[0][1]


def _drift(steps: Steps, trained: Sequence[str], held_out: Gains) -> Iterator[Finding]:
    for reward in trained:
        points = _means(steps, reward)
        if not _rising(points):
            continue
        level = f"the training reward {reward} rose from {points[0][1]:.3f} to {points[-1][1]:.3f}"
        for name in dict.fromkeys(name for step in steps for name in step["reward"] if name not in trained):
            watched = falls(_means(steps, name))
            if watched is not None and watched.direction < 0:
                fell = f"fell from {watched.first:.3f} to {watched.last:.3f}"
                seen = f"{level} while {name}, which is watched and not trained, {fell}"
                yield _hacking(seen, {reward: points[-1][1] - points[0][1], name: watched.last - watched.first})
        for where, gain in held_out.items():
            if gain["high"] is None or gain["high"] >= 0:
                continue
            seen = f"{level} while {where} fell by {-gain['mean']:.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
            figures = {reward: points[-1][1] - points[0][1], where: gain["mean"]}
            if gain["name"] in trained:
                yield Finding("drift", seen, _OVERFITTED, _MORE_DATA, figures, warning=True)
            else:
                yield _hacking(seen, figures)


_OVERFITTED = "the policy has learned the training examples, not the task"
_MORE_DATA = (
    "train on more or more varied examples, for fewer epochs, and let finetuning.validation choose the checkpoint (select)"
)


def _hacking(seen: str, figures: Mapping[str, float]) -> Finding:
    return Finding(
        "drift",
        f"reward hacking? {seen}",
        "the policy earns more by something else than what you want: the reward pays for it",
        "read the example rollouts of the last step beside those of the first: what do they do to score? Mend the evaluator "
        "before training on; let the other metric choose the checkpoint (finetuning.validation.select)",
        figures,
        warning=True,
    )


def _length(steps: Steps, trained: Sequence[str]) -> Iterator[Finding]:
    tokens = trend(_responses(steps, "tokens_mean"))
    for name in trained:
        known = [
            value for step in steps if (value := (step.get("response") or {}).get("correlation", {}).get(name)) is not None
        ]
        if not known or abs(mean := fmean(known)) < LENGTH:
            continue
        longer = "longer" if mean > 0 else "shorter"
        follows = tokens is not None and tokens.direction == (1 if mean > 0 else -1)
        yield Finding(
            "length",
            f"{name} goes with length: correlation {mean:+.2f} inside groups with the tokens of a rollout"
            + (_moved(tokens) if tokens is not None and follows else ""),
            f"the reward may pay for {longer} answers as such"
            + (", and the policy has followed it" if follows else "; it need not, where the task itself asks for them"),
            f"read a {longer} and a better answer of one example side by side; if length is what pays, score content, or put a "
            "bound on length (max_tokens, a length reward with a condition, the overlong penalty)",
            {"correlation": mean, **({"tokens_first": tokens.first, "tokens_last": tokens.last} if tokens else {})},
            warning=follows,
        )


def _moved(tokens: Trend) -> str:
    return f", and rollouts went from {tokens.first:.1f} to {tokens.last:.1f} tokens"


def _opposed(steps: Steps, trained: Sequence[str]) -> Iterator[Finding]:
    for name in trained:
        rows = [step["reward"][name].get("correlation", {}) for step in steps if name in step["reward"]]
        for other in dict.fromkeys(key for row in rows for key in row if key not in trained):
            known = [value for row in rows if (value := row.get(other)) is not None]
            if known and (mean := fmean(known)) <= OPPOSED:
                yield Finding(
                    "opposed",
                    f"{name} goes against {other}: correlation {mean:+.2f} inside groups",
                    f"what is trained is not what {other} measures; training on will cost it",
                    f"decide which of the two you want; train both (finetuning.reward_functions), or pay {name} only where "
                    f"{other} is high (condition)",
                    {"correlation": mean},
                )


def _dominance(steps: Steps, trained: Sequence[str]) -> Iterator[Finding]:
    if len(trained) < 2:
        return
    for name in trained:
        known = [value for step in steps if (value := step.get("advantage_share", {}).get(name)) is not None]
        if not known:
            continue
        share = fmean(known)
        if share >= DOMINANT:
            found, meaning = (
                "nearly alone",
                "the other rewards hardly train: its range is wider, or they are equal inside groups",
            )
        elif share <= SILENT:
            found, meaning = "hardly at all", "it is equal inside groups, or its range is small beside the others'"
        else:
            continue
        yield Finding(
            "dominance",
            f"{name} trains {found}: it made {share:.0%} of the advantages",
            meaning,
            "look at the spread of each reward inside groups; give weights (1 / range makes ranges equal), or train each "
            "reward apart (algorithm: {name: gdpo})",
            {"share": share},
        )


def _repetition(steps: Steps) -> Iterator[Finding]:
    points = _responses(steps, "repeated")
    if not points:
        return
    seen = trend(points)
    last = seen.last if seen is not None else points[-1][1]
    if last < REPEATED:
        return
    rose = seen is not None and seen.direction > 0
    before = f" ({seen.first:.0%} at first)" if seen is not None and rose else ""
    yield Finding(
        "repetition",
        f"{last:.0%} of the answers to an example repeat another one word for word{before}",
        "the policy explores little: groups of equal answers teach nothing"
        + (", and it does so less and less" if rose else "; where few answers are possible, this is how it must be"),
        "if more answers are possible: raise the temperature, add a KL to the reference (kl_coefficient), or lower the "
        "learning rate; else fewer generations do",
        {"repeated": last},
    )


def _unwatched(steps: Steps, trained: Sequence[str], held_out: Gains) -> Iterator[Finding]:
    names = {name for step in steps for name in step["reward"]} | {gain["name"] for gain in held_out.values()}
    if trained and not names - set(trained):
        yield Finding(
            "unwatched",
            "nothing but the trained reward was measured",
            "whether a better reward is a better policy is unknown: one that can be cheated looks like one that is learned",
            "measure something that is not trained: finetuning.watch during training, validation.metrics and test.metrics on "
            "held-out examples",
        )
