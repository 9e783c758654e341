"""What reading shared beginnings once saves in the update, on the rollouts of a finished GRPO run.

    python benchmarks/shared_prefixes.py RUN_FOLDER

Prints JSON: trained tokens, token sequences (segments), tokens that the model reads without and with sharing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.compose import target_of
from nat_finetune.config.load import load_config
from nat_finetune.data.groups import build_groups
from nat_finetune.data.trajectories import Credit
from nat_finetune.local.group_rows import encode_groups
from nat_finetune.registry import Registry
from nat_finetune.runstore import RunStore
from nat_finetune.types import Group, Rollout

BUDGET = 1024


def main(folder: Path) -> None:
    """Count over all steps."""
    target = target_of(load_config(folder / "config.yml", registry=Registry.installed()).config)
    steps: dict[int, list[Rollout]] = {}
    for step, rollout in RunStore.open(folder).rollouts():
        if rollout is not None and "~" not in rollout.rollout_id:
            steps.setdefault(step, []).append(rollout)
    found = {"segments": 0, "trained_tokens": 0, "sequences_apart": 0, "read_apart": 0, "sequences_shared": 0, "read_shared": 0}
    for rollouts in steps.values():
        groups = [made for made in build_groups(rollouts, target, Credit()) if isinstance(made, Group)]
        if not groups:
            continue
        encoded = encode_groups(
            groups, PRESETS["grpo"], rewards=target.rewards, length_limit=None, max_length=None, policy_version=0
        )
        units = [unit for item in encoded.items for unit in item]
        found["segments"] += len(units)
        found["trained_tokens"] += encoded.trained_tokens
        for name, tree_tokens in (("apart", 0), ("shared", BUDGET)):
            trees = [t for p in encoded.rows.plans(units, max_tokens=BUDGET, tree_tokens=tree_tokens) for t in p.trees]
            found[f"sequences_{name}"] += len(trees)
            found[f"read_{name}"] += sum(tree.length for tree in trees)
    shares = {f"trained_share_{name}": found["trained_tokens"] / found[f"read_{name}"] for name in ("apart", "shared")}
    print(json.dumps({**found, **shares}, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
