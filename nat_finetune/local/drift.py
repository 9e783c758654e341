"""How far the policy is from its reference, measured where it matters: on what it samples now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nat_finetune.data.batches import Rows
from nat_finetune.data.seeds import derive_seed
from nat_finetune.local.optimise import Learner
from nat_finetune.local.policy import LocalPolicy
from nat_finetune.local.scores import TEMPERATURE
from nat_finetune.types import SamplingParams

Ids = tuple[int, ...]

_REFERENCE = "reference"
_PASS_TOKENS = 2048


async def kl_of_fresh_samples(
    policy: LocalPolicy, learner: Learner, prompts: Sequence[Ids], *, samples: int, max_tokens: int, seed: int
) -> float | None:
    """KL of the policy to the reference, nats per completion, from fresh completions of these prompts at temperature 1.

    The sum over a completion's tokens of the k3 estimator (http://joschu.net/blog/kl-approx.html), averaged over `samples`
    completions of each prompt, of at most `max_tokens` tokens. None without a reference.
    """
    if learner.reference is None:
        return None
    wanted = [(prompt, place) for prompt in prompts for place in range(samples)]
    made = await asyncio.gather(
        *(
            policy.engine.generate(
                prompt,
                SamplingParams(max_tokens=max_tokens, seed=derive_seed(seed, "drift", index)),
                stop_ids=policy.format.stop_ids,
                order_key=f"drift-{index:05d}",
            )
            for index, (prompt, _) in enumerate(wanted)
        )
    )
    rows = Rows.of(
        [prompt + g.completion_ids for (prompt, _), g in zip(wanted, made, strict=True)],
        [[0] * len(prompt) + [1] * len(g.completion_ids) for (prompt, _), g in zip(wanted, made, strict=True)],
    )
    rows.columns[TEMPERATURE] = np.ones(len(rows.token_ids_N), np.float32)
    now = np.concatenate([g.logprobs for g in made])
    return await asyncio.to_thread(_kl, policy, learner, rows, now)


def _kl(policy: LocalPolicy, learner: Learner, rows: Rows, now: NDArray[np.float64]) -> float | None:
    """`now`: the logprobs that the completions' tokens were drawn with."""
    if learner.reference is None:
        return None
    plans = learner.scorer.plans(rows, [(row,) for row in range(len(rows))], _PASS_TOKENS)
    with policy.exclusive(), learner.reference.active():
        learner.scorer.score_into(rows, _REFERENCE, plans)
    gap = rows.columns[_REFERENCE][rows.loss_mask_N].astype(np.float64) - now
    return float((np.expm1(gap) - gap).sum() / len(rows))
