"""The sequences that are being generated: prefill, one token for all of them at a time, and what has ended.

Bookkeeping is in numpy, one array operation for all rows; a row costs Python only when it comes and when it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nat_finetune.local.forward import Forward
from nat_finetune.local.kv_cache import LENGTH_STEP, Extend, Prefill, SlotCache
from nat_finetune.local.sampling import Draw, sample
from nat_finetune.types import FinishReason, SamplingParams

_STOP_MARGIN = 4
"""Tokens decoded beyond the length of a stop string: a token may be less than a character."""


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


class _Columns:
    """What is known of each row, one numpy array a column."""

    def __init__(self) -> None:
        self.length = np.zeros(0, np.int64)
        """Prompt tokens and sampled tokens."""
        self.count = np.zeros(0, np.int64)
        """Sampled tokens."""
        self.limit = np.zeros(0, np.int64)
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
    def of(cls, rows: Sequence[Row]) -> _Columns:
        new = cls()
        new.length = np.array([len(row.prompt_ids) for row in rows], np.int64)
        new.count = np.zeros(len(rows), np.int64)
        new.limit = np.array([row.limit for row in rows], np.int64)
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

    def take(self, order: np.ndarray) -> _Columns:
        """These rows, in this order."""
        new = _Columns()
        for name, column in vars(self).items():
            setattr(new, name, column[order])
        return new

    def join(self, other: _Columns) -> _Columns:
        """These rows and then the other's."""
        new = _Columns()
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
            temperature_B=_tensor(self.temperature, device),
            seed_B=_tensor(self.seed, device),
            step_B=_tensor(self.count, device),
            top_k_B=_tensor(self.top_k, device) if self.top_k.any() else None,
            top_p_B=_tensor(self.top_p, device) if (self.top_p < 1).any() else None,
            greedy=bool((self.temperature == 0).any()),
            scales=bool(((self.temperature != 0) & (self.temperature != 1)).any()),
        )


class Batch:
    """The rows under way; at most as many as its user admits."""

    def __init__(self, forward: Forward, tokenizer: Any) -> None:
        self._forward = forward
        self._tokenizer = tokenizer
        self._cache = SlotCache()
        self._rows: list[Row] = []
        self._columns = _Columns()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows under way."""
        return tuple(self._rows)

    def clear(self) -> None:
        """Forget all rows and give the memory back."""
        self._rows, self._columns = [], _Columns()
        self._cache.clear()

    def drop(self, rows: Sequence[Row]) -> None:
        """Take rows out whose owner is gone."""
        gone = {id(row) for row in rows}
        self._keep(np.array([id(row) not in gone for row in self._rows], bool))

    def admit(self, rows: Sequence[Row]) -> list[Finished]:
        """Prefill prompts (equal ones once), sample the first token of each row; returns what ended with it."""
        self._forward.refresh()
        prompts: dict[tuple[int, ...], list[int]] = {}
        for index, row in enumerate(rows):
            prompts.setdefault(row.prompt_ids, []).append(index)
        order = sorted(prompts, key=len)
        first = len(self._rows)
        self._cache.reserve(first + len(rows), max(map(len, prompts)) + 1, used=first)
        logits_P_V = self._prefill(order, first)
        place = {prompt: at for at, prompt in enumerate(order)}
        source = np.array([place[row.prompt_ids] for row in rows], np.int64)
        columns = _Columns.of(rows)
        logits_B_V = (
            logits_P_V
            if len(rows) == len(order) and (np.diff(source) == 1).all()
            else logits_P_V[_tensor(source, logits_P_V.device)]
        )
        tokens, logprobs = sample(logits_B_V, columns.draw(logits_P_V.device))
        columns.record(tokens.cpu().numpy(), logprobs.cpu().numpy())
        ended = self._ended(rows, columns)
        self._seat(rows, columns, source + first, ~ended)
        return self._results(rows, columns, ended)

    def step(self) -> list[Finished]:
        """Sample the next token of every row; returns what ended with it."""
        columns, device = self._columns, self._forward.device
        reach = int(columns.length.max())
        self._cache.reserve(len(self._rows), reach, used=len(self._rows))
        positions_B_T = _tensor(columns.length - 1, device)[:, None]
        slots = Extend(self._cache, positions_B_T, reach)
        hidden = self._forward.hidden(_tensor(columns.last, device)[:, None], positions_B_T, slots)
        tokens, logprobs = sample(self._forward.logits(hidden[:, 0]), columns.draw(device))
        columns.record(tokens.cpu().numpy(), logprobs.cpu().numpy())
        ended = self._ended(self._rows, columns)
        results = self._results(self._rows, columns, ended)
        self._keep(~ended)
        return results

    def _prefill(self, prompts: Sequence[tuple[int, ...]], first: int) -> torch.Tensor:
        """Run prompts (shortest first) into the slots from `first` on; logits after each, [P, V]."""
        device = self._forward.device
        logits: list[torch.Tensor] = []
        start = 0
        while start < len(prompts):
            end = start + 1
            while end < len(prompts) and (end + 1 - start) * len(prompts[end]) <= self._forward.pass_tokens:
                end += 1
            chunk = prompts[start:end]
            ids = np.zeros((len(chunk), len(chunk[-1])), np.int64)
            for index, prompt in enumerate(chunk):
                ids[index, : len(prompt)] = prompt
            positions_B_T = torch.arange(ids.shape[1], device=device).expand(len(chunk), -1)
            hidden = self._forward.hidden(
                _tensor(ids, device), positions_B_T, Prefill(self._cache, first + start, positions_B_T)
            )
            last = torch.tensor([len(prompt) - 1 for prompt in chunk], device=device)
            logits.append(self._forward.logits(hidden[torch.arange(len(chunk), device=device), last]))
            start = end
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _seat(self, rows: Sequence[Row], columns: _Columns, source: np.ndarray, alive: np.ndarray) -> None:
        """Give every surviving new row a slot: its prompt's own, or a copy of it."""
        first, seats = len(self._rows), int(alive.sum())
        seated: dict[int, int] = {}
        waiting: list[int] = []
        for index in np.flatnonzero(alive).tolist():
            slot = int(source[index])
            if slot < first + seats and slot not in seated:
                seated[slot] = index
            else:
                waiting.append(index)
        free = [slot for slot in range(first, first + seats) if slot not in seated]
        if waiting:
            device = self._forward.device
            longest = int(columns.length[waiting].max())
            self._cache.copy(_tensor(source[waiting], device), torch.tensor(free, device=device), longest)
            seated.update(zip(free, waiting, strict=True))
        order = [seated[slot] for slot in range(first, first + seats)]
        self._rows += [rows[index] for index in order]
        self._columns = self._columns.join(columns.take(np.array(order, np.int64))) if order else self._columns

    def _keep(self, alive: np.ndarray) -> None:
        """Close the gaps that ended rows leave: the last rows move into them."""
        count = int(alive.sum())
        if count == len(self._rows):
            return
        holes, movers = np.flatnonzero(~alive[:count]), np.flatnonzero(alive[count:]) + count
        order = np.arange(count)
        order[holes] = movers
        if len(holes):
            longest, device = int(self._columns.length[movers].max()), self._forward.device
            self._cache.copy(_tensor(movers, device), _tensor(holes, device), longest)
        self._rows = [self._rows[index] for index in order.tolist()]
        self._columns = self._columns.take(order)

    def _ended(self, rows: Sequence[Row], columns: _Columns) -> np.ndarray:
        stopped = (columns.stops == columns.last[:, None]).any(1) | (columns.count >= columns.limit)
        for index in np.flatnonzero(columns.texts & ~stopped).tolist():
            stopped[index] = self._stop_text(rows[index], columns, index)
        result: np.ndarray = stopped
        return result

    def _stop_text(self, row: Row, columns: _Columns, index: int) -> bool:
        """Whether the last token completes one of the row's stop strings."""
        window = max(len(text.encode()) for text in row.sampling.stop) + _STOP_MARGIN
        count = int(columns.count[index])
        tail = self._tokenizer.decode(columns.tokens[index, max(0, count - window) : count].tolist())
        return any(text in tail for text in row.sampling.stop)

    def _results(self, rows: Sequence[Row], columns: _Columns, ended: np.ndarray) -> list[Finished]:
        results = []
        for index in np.flatnonzero(ended).tolist():
            row, count = rows[index], int(columns.count[index])
            stop = int(columns.last[index]) in row.stop_ids or (
                bool(row.sampling.stop) and self._stop_text(row, columns, index)
            )
            results.append(
                Finished(
                    row=row,
                    completion_ids=tuple(columns.tokens[index, :count].tolist()),
                    logprobs=tuple(columns.logprobs[index, :count].tolist()),
                    finish_reason=FinishReason.STOP if stop else FinishReason.LENGTH,
                )
            )
        return results


def _tensor(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def _widened(array: np.ndarray, width: int, fill: int) -> np.ndarray:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill)


def _equally_wide(arrays: Sequence[np.ndarray], fill: int) -> list[np.ndarray]:
    width = max(array.shape[1] for array in arrays)
    return [_widened(array, width, fill) for array in arrays]
