"""Figures and sentences about rollouts and drops: what a step's line in `metrics.jsonl` holds, and what errors say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nat_finetune.data.merging import count_merges
from nat_finetune.data.trajectories import is_truncated, target_calls
from nat_finetune.report.responses import response_figures
from nat_finetune.report.rewards import reward_figures
from nat_finetune.types import Cause, Collection, Dropped, Group, Rollout, Target


def sampled_tokens(rollout: Rollout) -> int:
    """Completion tokens that are known of a rollout's calls."""
    return sum(len(call.completion_ids) for call in rollout.model_calls if call.completion_ids is not None)


def drop_counts(dropped: Sequence[Dropped]) -> dict[str, int]:
    """How often each reason dropped something, `what/reason` first seen first."""
    return dict(Counter(f"{drop.what}/{drop.reason.value}" for drop in dropped))


def rollout_metrics(rollouts: Sequence[Rollout], target: Target) -> dict[str, Any]:
    """Rollouts, failures, rewards (`report.rewards.reward_figures`) and tokens of a step.

    `truncated` counts rollouts one of whose trained calls `max_tokens` cut off.
    """
    finals = [rollout for rollout in rollouts if "~" not in rollout.rollout_id]
    return {
        "rollouts": len(finals),
        "retried": len(rollouts) - len(finals),
        "truncated": sum(is_truncated(target_calls(rollout, target)) for rollout in finals),
        "failed": _failures(finals),
        "reward": reward_figures(finals, target),
        "response": response_figures(finals, target),
        "tokens": {"sampled": sum(sampled_tokens(rollout) for rollout in rollouts)},
    }


def segment_counts(rollouts: Sequence[Rollout], collection: Collection) -> dict[str, int]:
    """How the turns of the groups became token sequences, and why not fewer; empty for other items."""
    groups = [item for item in collection.items if isinstance(item, Group)]
    return asdict(count_merges(rollouts, groups)) if groups else {}


def _failures(rollouts: Sequence[Rollout]) -> dict[str, int]:
    causes = Counter(rollout.failure.cause.value for rollout in rollouts if rollout.failure is not None)
    return {cause.value: causes[cause.value] for cause in Cause}


def by_reason(rows: Mapping[str, int]) -> list[dict[str, Any]]:
    """Counts of `drop_counts` as rows, most first."""
    ordered = sorted(rows.items(), key=lambda item: -item[1])
    return [{"what": key.split("/")[0], "reason": key.split("/")[1], "count": count} for key, count in ordered]
