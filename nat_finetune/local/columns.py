"""What is known of the rows under way: one numpy array a column, one operation for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nat_finetune.local.kv_cache import LENGTH_STEP
from nat_finetune.local.sampling import Draw
from nat_finetune.types import FinishReason, SamplingParams


@dataclass(slots=True, eq=False)
class Row:
    """One sequence to generate."""

    prompt_ids: tuple[int, ...]
    limit: int
    """Most tokens to sample."""
    sampling: SamplingParams
    seed: int
    stop_ids: tuple[int, ...]
    owner: Any
    """Whoever asked; handed back with the result."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence that ended."""

    row: Row
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


class Columns:
    """What is known of each row, one numpy array a column."""

    def __init__(self) -> None:
        self.length = np.zeros(0, np.int64)
        """Prompt tokens and sampled tokens."""
        self.count = np.zeros(0, np.int64)
        """Sampled tokens."""
        self.limit = np.zeros(0, np.int64)
        self.trunk = np.zeros(0, np.int64)
        """Tokens of the trunk that the row continues, which are not in its slot."""
        self.last = np.zeros(0, np.int64)
        """The last sampled token: sampled, but not in the cache yet."""
        self.seed = np.zeros(0, np.int64)
        self.temperature = np.zeros(0, np.float32)
        self.top_k = np.zeros(0, np.int64)
        self.top_p = np.zeros(0, np.float32)
        self.texts = np.zeros(0, bool)
        """Whether the row has stop strings."""
        self.stops = np.zeros((0, 1), np.int64)
        self.tokens = np.zeros((0, 0), np.int64)
        self.logprobs = np.zeros((0, 0), np.float32)

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Columns:
        """Of new rows, nothing sampled yet."""
        new = cls()
        new.length = np.array([len(row.prompt_ids) for row in rows], np.int64)
        new.count = np.zeros(len(rows), np.int64)
        new.limit = np.array([row.limit for row in rows], np.int64)
        new.trunk = np.zeros(len(rows), np.int64)
        new.last = np.zeros(len(rows), np.int64)
        new.seed = np.array([row.seed for row in rows], np.int64)
        new.temperature = np.array([row.sampling.temperature for row in rows], np.float32)
        new.top_k = np.array([row.sampling.top_k or 0 for row in rows], np.int64)
        new.top_p = np.array([1.0 if row.sampling.top_p is None else row.sampling.top_p for row in rows], np.float32)
        new.texts = np.array([bool(row.sampling.stop) for row in rows], bool)
        width = max(1, *(len(row.stop_ids) for row in rows)) if rows else 1
        new.stops = np.full((len(rows), width), -1, np.int64)
        for index, row in enumerate(rows):
            new.stops[index, : len(row.stop_ids)] = row.stop_ids
        new.tokens = np.zeros((len(rows), LENGTH_STEP), np.int64)
        new.logprobs = np.zeros((len(rows), LENGTH_STEP), np.float32)
        return new

    def take(self, order: np.ndarray) -> Columns:
        """These rows, in this order."""
        new = Columns()
        for name, column in vars(self).items():
            setattr(new, name, column[order])
        return new

    def join(self, other: Columns) -> Columns:
        """These rows and then the other's."""
        new = Columns()
        for name, column in vars(self).items():
            pair = [column, getattr(other, name)]
            if column.ndim == 2:
                pair = _equally_wide(pair, fill=-1 if name == "stops" else 0)
            setattr(new, name, np.concatenate(pair))
        return new

    def record(self, tokens: np.ndarray, logprobs: np.ndarray) -> None:
        """Append a sampled token to every row."""
        if len(self.count) and self.count.max() >= self.tokens.shape[1]:
            width = 2 * self.tokens.shape[1]
            self.tokens, self.logprobs = _widened(self.tokens, width, 0), _widened(self.logprobs, width, 0)
        rows = np.arange(len(self.count))
        self.tokens[rows, self.count], self.logprobs[rows, self.count] = tokens, logprobs
        self.last = tokens
        self.count += 1
        self.length += 1

    def draw(self, device: torch.device) -> Draw:
        """The sampling settings of all rows, on the device."""
        return Draw(
            temperature_B=tensor_of(self.temperature, device),
            seed_B=tensor_of(self.seed, device),
            step_B=tensor_of(self.count, device),
            top_k_B=tensor_of(self.top_k, device) if self.top_k.any() else None,
            top_p_B=tensor_of(self.top_p, device) if (self.top_p < 1).any() else None,
            greedy=bool((self.temperature == 0).any()),
            scales=bool(((self.temperature != 0) & (self.temperature != 1)).any()),
        )


def tensor_of(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A column on the device."""
    return torch.from_numpy(array).to(device)


def _widened(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill)


def _equally_wide(arrays: Sequence[np.ndarray], fill: int) -> list[np.ndarray]:
    width = max(array.shape[1] for array in arrays)
    return [_widened(array, width, fill) for array in arrays]
