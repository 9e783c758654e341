"""The learner is checked: the same tokens, scored by the engine that samples and by the trainer, before and after an update.

Stale caches, an adapter that never reached the engine, sampling from the base model: all of them train happily and learn
nothing. They show here, after the first update, as a difference or as an engine that did not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nat_finetune.data.batches import Rows
from nat_finetune.errors import AgreementError
from nat_finetune.local.scores import TEMPERATURE, TrainerScorer

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1, torch.float64: 1e-6}
"""By the model's dtype: nats between sampler and trainer that rounding explains."""

_COLUMN = "trainer_logprobs"

Scores = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Canary:
    """A few token sequences to look at."""

    rows: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Prompt ids and completion ids."""
    temperature: float = 1.0

    @classmethod
    def of(cls, rows: Rows, *, count: int) -> Canary:
        """The first `count` rows of an update that differ; whatever follows a row's prompt counts as its completion."""
        found: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
        for row in range(len(rows)):
            start, end = int(rows.starts[row]), int(rows.starts[row + 1])
            first = start + int(rows.loss_mask_N[start:end].argmax())
            ids = tuple(rows.token_ids_N[start:end].tolist())
            found[ids[: first - start], ids[first - start :]] = None
            if len(found) == count:
                break
        return cls(tuple(found))


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a check found, in nats."""

    max_abs: float
    """Largest difference between engine and trainer."""
    mean_abs: float
    moved: float
    """Largest change of the engine's logprobs since before the update."""


def trainer_scores(canary: Canary, scorer: TrainerScorer) -> list[list[float]]:
    """The trainer's logprobs of the canary's completions, nats."""
    rows = Rows.of(
        [prompt + completion for prompt, completion in canary.rows],
        [[0] * len(prompt) + [1] * len(completion) for prompt, completion in canary.rows],
    )
    rows.columns[TEMPERATURE] = np.full(len(rows.token_ids_N), canary.temperature, np.float32)
    scorer.score_into(rows, _COLUMN, rows.plans([(row,) for row in range(len(rows))], max_tokens=2048))
    flat = np.split(rows.columns[_COLUMN][rows.loss_mask_N], rows.trained_tokens.cumsum()[:-1])
    return [values.tolist() for values in flat]


def compare(engine: Scores, trainer: Scores, before: Scores, *, bound: float, must_move: bool) -> Agreement:
    """Hold the engine's scores after an update against the trainer's, and against its own from before.

    Raises:
        AgreementError: they differ by more than `bound` nats, or the engine did not move though the weights changed.
    """
    now, mine, then = (_flat(scores) for scores in (engine, trainer, before))
    apart = np.abs(now - mine)
    found = Agreement(float(apart.max()), float(apart.mean()), float(np.abs(now - then).max()))
    if not found.max_abs <= bound:
        raise AgreementError(
            f"after the update engine and trainer differ by up to {found.max_abs:.3g} nats on the same tokens, more than "
            f"agreement.bound = {bound:g}: what samples is not what is trained; set dtype: float32 for the model, or raise "
            "the bound if its precision explains it"
        )
    if must_move and found.moved == 0:
        raise AgreementError(
            "the weights changed in the update, and the engine's logprobs did not: it still samples from the old ones"
        )
    return found


def _flat(scores: Scores) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value for row in scores for value in row], np.float64)
