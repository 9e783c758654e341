"""The negative control of GRPO: the same run with rewards permuted inside each group must gain next to nothing.

    python benchmarks/permuted_rewards.py configs/grpo_tic_tac_toe.yml --seeds 5 [-o key=value ...]

Prints one JSON line a seed and a summary: the gain on the test set's primary metric, true and permuted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nat_finetune.builders.grpo import GRPOTrajBuilder, GRPOTrajBuilderConfig
from nat_finetune.config.load import load_config
from nat_finetune.data.seeds import derive_seed
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Kind, Registration, Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.types import Dropped, Group, Item, Rollout, Segment


class PermutingBuilder:
    """Groups as they are, but rewards and credits shuffled among the members (credits within each turn index)."""

    def __init__(self, inner: GRPOTrajBuilder, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self.generations = inner.generations

    def build(self, rollouts: Iterable[Rollout]) -> Iterator[Item | Dropped]:
        for item in self._inner.build(rollouts):
            yield self._permuted(item) if isinstance(item, Group) else item

    def _permuted(self, group: Group) -> Group:
        rewards = [dict(trajectory.rewards) for trajectory in group.trajectories]
        self._random.shuffle(rewards)
        credits: dict[int, list[float | None]] = {}
        for trajectory in group.trajectories:
            for segment in trajectory.segments:
                for turn in segment.turns:
                    credits.setdefault(turn.index, []).append(turn.credit)
        for values in credits.values():
            self._random.shuffle(values)
        members = []
        for trajectory, own in zip(group.trajectories, rewards, strict=True):
            segments = tuple(self._recredited(segment, credits) for segment in trajectory.segments)
            members.append(replace(trajectory, rewards=own, segments=segments))
        return Group(group.example_id, tuple(members))

    @staticmethod
    def _recredited(segment: Segment, credits: dict[int, list[float | None]]) -> Segment:
        return replace(segment, turns=tuple(replace(turn, credit=credits[turn.index].pop()) for turn in segment.turns))


def registry(*, permuted: bool) -> Registry:
    installed = Registry.installed()
    if not permuted:
        return installed

    async def factory(config: GRPOTrajBuilderConfig, builder: Any) -> AsyncIterator[PermutingBuilder]:
        yield PermutingBuilder(GRPOTrajBuilder(config, builder.target), derive_seed(builder.seed, "permute"))

    changed = Registry()
    for known in installed:
        same = known.kind is Kind.TRAJECTORY_BUILDER and known.name == "grpo_traj_builder"
        changed.add(Registration(known.kind, known.name, known.config_type, factory if same else known.factory, known.origin))
    return changed


def gain(config: Path, overrides: list[str], *, permuted: bool) -> dict[str, Any]:
    components = registry(permuted=permuted)
    loaded = load_config(config, overrides, registry=components)
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(finetune(loaded, components, new_run(loaded, Path(folder)), NullProgress()))
    metric = report["metrics"][report["primary_metric"]]
    return {
        "permuted": permuted,
        "seed": loaded.config.finetuning.seed,
        **metric["gain"],
        "seconds": report["seconds"]["total"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--true-seeds", type=int, default=1, help="runs with the true rewards, to compare with")
    parser.add_argument("-o", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    rows = []
    for permuted, count in ((False, arguments.true_seeds), (True, arguments.seeds)):
        for seed in range(count):
            row = gain(arguments.config, [*arguments.overrides, f"finetuning.seed={seed}"], permuted=permuted)
            rows.append(row)
            print(json.dumps(row), flush=True)
    true = [row["mean"] for row in rows if not row["permuted"]]
    highest = max(row["high"] for row in rows if row["permuted"])
    share = highest / (sum(true) / len(true))
    print(json.dumps({"true_gain": sum(true) / len(true), "highest_upper_bound_permuted": highest, "share": share}))


if __name__ == "__main__":
    main()
