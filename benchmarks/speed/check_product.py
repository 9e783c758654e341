"""Equal losses on equal batches, the product's half: `python check_product.py JOB.json FOLDER`.

One update, so that the policy is no longer its reference; its weights are exported. A second update on other items: its loss is
what the peer has to find from the exported weights and the same tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from product import Product, composed
from protocol import Job

from nat_finetune.finetune import rollout_source
from nat_finetune.local.export import export_adapter, export_merged
from nat_finetune.local.pair_rows import pair_ids
from nat_finetune.types import Dropped, Group, PreferencePair

PAIRS = 4
"""Of a batch; half a step's, for the machine's sake."""
STOP = "k"
"""GRPO's completions end where this letter is sampled: of equal lengths the loss would be 0 whatever it is."""


async def preferences(product: Product, folder: Path) -> dict[str, Any]:
    """Loss and rows of the second update."""
    records = await product.parts.get_records()
    pairs = [made for made in records.build() if isinstance(made, PreferencePair)]
    policy = await product.parts.get_policy()
    await product.update(pairs[:PAIRS])
    export_merged(policy, folder / "policy")
    batch = pairs[PAIRS : 2 * PAIRS]
    result = await product.update(batch)
    sides = [pair_ids(pair, policy.format) for pair in batch]
    rows = [{"prompt_ids": chosen[0], "chosen_ids": chosen[1], "rejected_ids": rejected[1]} for chosen, rejected in sides]
    return {"loss": result.curve[0]["loss"], "rows": rows}


async def groups(product: Product, folder: Path) -> dict[str, Any]:
    """Loss, gradient's norm and rollouts of the second update."""
    policy = await product.parts.get_policy()
    source = await rollout_source(product.config, product.parts)
    for first in (True, False):
        rollouts = await product.rollouts()
        items = [made for made in source.builder.build(rollouts) if not isinstance(made, Dropped)]
        if not first:
            (export_adapter if product.job.mode == "lora" else export_merged)(policy, folder / "policy")
        result = await product.update(items)
    kept = [trajectory for item in items if isinstance(item, Group) for trajectory in item.trajectories]
    rows = []
    for trajectory in kept:
        (segment,) = trajectory.segments
        start = segment.turns[0].start
        ids = {"prompt_ids": segment.token_ids[:start], "completion_ids": segment.token_ids[start:]}
        rows.append({**ids, "logprobs": segment.logprobs[start:], "reward": trajectory.rewards["cheap"]})
    return {"loss": result.curve[0]["loss"], "grad_norm": result.curve[0]["grad_norm"], "rows": rows}


def main(job: Job, folder: Path) -> None:
    """Write `product.json` and `policy/` into the folder."""

    async def body(product: Product) -> None:
        found = await (preferences if job.work == "dpo" else groups)(product, folder)
        (folder / "product.json").write_text(json.dumps(found))

    overrides = ["trainer_adapters.here.batch_size=null" if job.work == "dpo" else f"llms.policy.stop=[{STOP}]"]
    asyncio.run(composed(job, folder, body, overrides))


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), Path(sys.argv[2]))
