"""The learner is checked: the same tokens, scored by the engine that samples and by the trainer, before and after an update.

Stale caches, an adapter that never reached the engine, sampling from the base model: all of them train happily and learn
nothing. They show here, after the first update, as one of three checks that fails: the engine equals the trainer, the engine
has changed, and it is not the base.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from nat_finetune.data.batches import Rows
from nat_finetune.data.seeds import derive_seed
from nat_finetune.errors import AgreementError
from nat_finetune.local.scores import SAMPLER, TEMPERATURE, TrainerScorer

BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.5, torch.float16: 0.1, torch.float64: 1e-6}
"""By the model's dtype: nats between sampler and trainer that rounding explains."""

_COLUMN = "trainer_logprobs"
_PASS_TOKENS = 2048
_FIXED = 4
_FIXED_TOKENS = 12
_NEAR = 0.1
"""Share of a bound: nearer to each other than that (root mean square), rounding hides which of two policies the engine is."""

Scores = Sequence[Sequence[float]]
Ids = tuple[int, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Canary:
    """A few token sequences to look at."""

    rows: tuple[tuple[Ids, Ids], ...]
    """Prompt ids and completion ids."""
    trained: tuple[tuple[bool, ...], ...]
    """Which of a row's completion tokens the update trained; the others are context between turns."""
    drawn: tuple[tuple[float, ...], ...] | None = None
    """Logprobs of these tokens, nats, from when they were drawn: None unless the weights from before the update drew all of
    them, at temperature 1."""

    @classmethod
    def of(cls, rows: Rows, drawn: NDArray[np.bool_] | None, *, count: int, max_tokens: int) -> Canary:
        """The first `count` rows of an update that differ; whatever follows a row's prompt counts as its completion.

        Fewer where more than `max_tokens` of theirs would be read together (a prompt that they share once), but always one.

        Args:
            rows: those of the update.
            drawn: for each row whether the weights from before the update drew it; None: none.
            count: most rows.
            max_tokens: most tokens.
        """
        found: dict[tuple[Ids, Ids], int] = {}
        prompts: set[Ids] = set()
        tokens = 0
        for row in range(len(rows)):
            start, end = int(rows.starts[row]), int(rows.starts[row + 1])
            first = int(rows.loss_mask_N[start:end].argmax())
            ids = tuple(rows.token_ids_N[start:end].tolist())
            prompt, completion = ids[:first], ids[first:]
            if (prompt, completion) in found:
                continue
            tokens += len(completion) if prompt in prompts else len(ids)
            if len(found) == count or (found and tokens > max_tokens):
                break
            found[prompt, completion] = row
            prompts.add(prompt)
        masks = [rows.loss_mask_N[rows.starts[row] + len(key[0]) : rows.starts[row + 1]] for key, row in found.items()]
        known = drawn is not None and drawn[[*found.values()]].all()
        return cls(
            tuple(found),
            tuple(tuple(mask.astype(bool).tolist()) for mask in masks),
            _drawn_logprobs(rows, [*found.values()]) if known else None,
        )

    @classmethod
    def fixed(cls, vocabulary: int, *, context: int | None, seed: int) -> Canary:
        """Sequences that are the same in every session of a run: token ids drawn from `vocabulary`, within the context."""
        drawn = random.Random(derive_seed(seed, "canary"))
        length = max(2, min(_FIXED_TOKENS, context or _FIXED_TOKENS))
        rows = [tuple(drawn.randrange(vocabulary) for _ in range(length)) for _ in range(_FIXED)]
        return cls(tuple((ids[:1], ids[1:]) for ids in rows), tuple((True,) * (length - 1) for _ in rows))


@dataclass(frozen=True, slots=True)
class Seen:
    """The canaries' logprobs around an update, nats."""

    before: Scores | None
    """Of the canary's trained tokens, before it, by the engine; None where another policy than that chose the tokens."""
    engine: Scores
    """The engine's, after it."""
    trainer: Scores
    """The trainer's, after it."""
    fixed_before: Scores
    """The engine's of the fixed canary, before the update."""
    fixed_engine: Scores
    fixed_trainer: Scores
    """The same two of the fixed canary, after the update."""
    fixed_base: Scores
    """The trainer's of the fixed canary before anything was trained."""


def trainer_scores(canaries: Sequence[Canary], scorer: TrainerScorer) -> list[list[list[float]]]:
    """For each canary the trainer's logprobs of its completions, nats, by one pass over all of them."""
    sides = [side for canary in canaries for side in canary.rows]
    rows = Rows.of(
        [prompt + completion for prompt, completion in sides],
        [[0] * len(prompt) + [1] * len(completion) for prompt, completion in sides],
    )
    rows.columns[TEMPERATURE] = np.ones(len(rows.token_ids_N), np.float32)
    scorer.score_into(rows, _COLUMN, scorer.plans(rows, [(row,) for row in range(len(rows))], _PASS_TOKENS))
    flat = iter(np.split(rows.columns[_COLUMN][rows.loss_mask_N], rows.trained_tokens.cumsum()[:-1]))
    return [[next(flat).tolist() for _ in canary.rows] for canary in canaries]


def trained_scores(canary: Canary, scores: Scores) -> list[list[float]]:
    """Those of the tokens that the update trained."""
    return [
        [value for value, taken in zip(row, trained, strict=True) if taken]
        for row, trained in zip(scores, canary.trained, strict=True)
    ]


def check_canaries(seen: Seen, canary: Canary, *, bound: float, rounding: float, changed: bool) -> dict[str, float]:
    """Make the three checks; returns what they found, by the names of docs/algorithms.md.

    Args:
        seen: the scores.
        canary: whose scores they are.
        bound: nats that engine and trainer may be apart.
        rounding: of `BOUNDS`, nats; whatever the bound is.
        changed: whether the update changed the weights.

    Raises:
        AgreementError: a check fails; says which.
    """
    found = (
        engine_equals_trainer(seen, bound=bound)
        | engine_changed(seen, rounding=rounding, changed=changed)
        | engine_is_not_base(seen, bound=bound)
    )
    if seen.before is None:
        return found
    return found | {"kl_previous": kl_previous(seen.before, trained_scores(canary, seen.engine))}


def engine_equals_trainer(seen: Seen, *, bound: float) -> dict[str, float]:
    """`agreement_max_abs` and `agreement_mean_abs`, nats; AgreementError where the largest is above the bound."""
    apart = np.abs(_flat(seen.engine) - _flat(seen.trainer))
    largest = float(apart.max())
    if not largest <= bound:
        raise AgreementError(
            f"canary, engine equals trainer: after the update they differ by up to {largest:.3g} nats on the same tokens, more "
            f"than agreement.bound = {bound:g}: what samples is not what is trained; set dtype: float32 for the model, or "
            "raise the bound if its precision explains it"
        )
    return {"agreement_max_abs": largest, "agreement_mean_abs": float(apart.mean())}


def engine_changed(seen: Seen, *, rounding: float, changed: bool) -> dict[str, float]:
    """`canary_moved`, nats; AgreementError where the weights changed, and the engine stands still away from the trainer.

    Weights may change by less than logprobs show: by a warm-up's first step, or in bf16.
    """
    engine, trainer = _flat(seen.fixed_engine), _flat(seen.fixed_trainer)
    moved = float(np.abs(engine - _flat(seen.fixed_before)).max())
    if changed and moved == 0 and _size(trainer - engine) > _NEAR * rounding:
        raise AgreementError(
            "canary, engine changed: the weights changed in the update, and the engine's logprobs did not: it still samples "
            "from the old ones"
        )
    return {"canary_moved": moved}


def engine_is_not_base(seen: Seen, *, bound: float) -> dict[str, float]:
    """`canary_from_base`, nats; AgreementError where the trained policy has left the base and the engine has not gone along.

    With trainer t and base b the engine e has gone (e - b)·(t - b) / |t - b|² of the way: 0 is the base, 1 the trained policy.
    """
    engine, trainer, base = (_flat(scores) for scores in (seen.fixed_engine, seen.fixed_trainer, seen.fixed_base))
    way = trainer - base
    gone = float((engine - base) @ way) / squares if (squares := float(way @ way)) else 1.0
    if _size(way) > _NEAR * bound and not gone > 0.5:
        raise AgreementError(
            f"canary, engine is not the base: training has moved the policy by {float(np.abs(way).max()):.3g} nats on fixed "
            f"tokens, and the engine has gone {gone:.0%} of that way: it samples from the untrained model"
        )
    return {"canary_from_base": float(np.abs(engine - base).max())}


def kl_previous(before: Scores, after: Scores) -> float:
    """KL of the policy before the update to that after it, nats per token, on tokens that the former sampled (k3, >= 0)."""
    log_ratio = _flat(after) - _flat(before)
    return float((np.expm1(log_ratio) - log_ratio).mean())


def _drawn_logprobs(rows: Rows, chosen: Sequence[int]) -> tuple[tuple[float, ...], ...] | None:
    """The sampler's, of these rows' trained tokens; None where one is not known, or was drawn at another temperature."""
    found: list[tuple[float, ...]] = []
    for row in chosen:
        place = slice(rows.starts[row], rows.starts[row + 1])
        mask = rows.loss_mask_N[place].astype(bool)
        values = rows.columns[SAMPLER][place][mask]
        if not (np.isfinite(values).all() and (rows.columns[TEMPERATURE][place][mask] == 1).all()):
            return None
        found.append(tuple(values.tolist()))
    return tuple(found)


def _flat(scores: Scores) -> Floats:
    return np.array([value for row in scores for value in row], np.float64)


def _size(differences: Floats) -> float:
    """Root mean square."""
    return float((differences @ differences / len(differences)) ** 0.5)
