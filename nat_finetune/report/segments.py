"""How turns became token sequences, in sentences: every new one costs its whole prompt once more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_WHY = {
    "re_rendered": "the chat template dropped or re-rendered earlier text, the sampled reply included",
    "edited": "the workflow changed an earlier reply (compaction, a parsed or shortened one)",
    "other": "another conversation: a sub-agent, a fresh prompt, a compacted history",
    "repeated": "several answers to one prompt",
}


def segments_account(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences for the report; none where no groups were built or each rollout has one turn."""
    total: Counter[str] = Counter()
    for step in steps:
        total.update(step.get("segments") or {})
    turns, trajectories = total["turns"], total["trajectories"]
    lines = []
    cut = sum(step.get("truncated", 0) for step in steps)
    if cut:
        lines.append(f"{cut:,} rollouts were cut off by max_tokens in a trained call")
    if turns > trajectories:
        segments = turns - total["merged"]
        lines.append(
            f"{turns:,} turns of {trajectories:,} trajectories became {segments:,} token sequences: {total['merged']:,} "
            f"extended an earlier one token for token, {total['first']:,} began their rollout"
        )
        lines += [f"{total[key]:,} sequences began anew: {why}" for key, why in _WHY.items() if total[key]]
    return lines
