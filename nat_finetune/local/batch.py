"""The sequences that are being generated: prefill, one token for all of them at a time, and what has ended.

Bookkeeping is in numpy, one array operation for all rows; a row costs Python only when it comes and when it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nat_finetune.local.columns import Columns, Finished, Row, tensor_of
from nat_finetune.local.forward import Forward
from nat_finetune.local.graphs import DecodeGraphs
from nat_finetune.local.kv_cache import Extend, SlotCache, Trunk
from nat_finetune.local.prefill import Seat, branches, entry_of, read, room_for, seats_of
from nat_finetune.local.prefix_cache import Entry, PrefixCache
from nat_finetune.local.sampling import sample
from nat_finetune.types import FinishReason

AHEAD = 32
"""Tokens of a completion that slots have room for from the start; longer ones make them grow."""

_STOP_MARGIN = 4
"""Tokens decoded beyond the length of a stop string: a token may be less than a character."""


class Batch:
    """The rows under way; at most as many as its user admits."""

    def __init__(self, forward: Forward, tokenizer: Any, *, prefix_cache_bytes: int = 0) -> None:
        self._forward = forward
        self._tokenizer = tokenizer
        self._prefix_cache_bytes = prefix_cache_bytes
        self._cache = SlotCache()
        self._graphs = DecodeGraphs(forward, self._cache)
        self.prefixes = PrefixCache(prefix_cache_bytes)
        """Sequences read or sampled before, under the same weights."""
        self._rows: list[Row] = []
        self._columns = Columns()
        self._trunks: list[Trunk | None] = []
        self._branches: list[tuple[Trunk, torch.Tensor]] | None = []
        """Of the rows as they are; None when that has to be looked at again."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows under way."""
        return tuple(self._rows)

    def new_weights(self) -> None:
        """Forget what was read under the old ones; no row is under way."""
        self.prefixes = PrefixCache(self._prefix_cache_bytes)

    def clear(self) -> None:
        """Forget all rows and give their memory back."""
        self._rows, self._columns = [], Columns()
        self._trunks, self._branches = [], []
        self._cache.clear()

    def drop(self, rows: Sequence[Row]) -> None:
        """Take rows out whose owner is gone."""
        gone = {id(row) for row in rows}
        self._keep(np.array([id(row) not in gone for row in self._rows], bool))

    def admit(self, rows: Sequence[Row]) -> list[Finished]:
        """Read prompts (see `prefill`), sample the first token of each row; returns what ended with it."""
        if not self._rows:  # weights do not change while rows are under way
            self._forward.refresh()
        seats = seats_of(Counter(row.prompt_ids for row in rows), self.prefixes, self._forward, Counter(map(id, self._trunks)))
        first = len(self._rows)
        ahead = min(max(row.limit for row in rows), AHEAD)
        room = max(room_for(seats, self._forward), *(seat.own + ahead for seat in seats))
        self._cache.reserve(first + len(rows), room, used=first)
        hidden_P = read(seats, self._forward, self._cache, first)
        if self.prefixes.keeps:
            for place, seat in enumerate(seats):
                self.prefixes.put(entry_of(seat, self._cache, first + place, hidden_P[place]))
        at = {seat.prompt: place for place, seat in enumerate(seats)}
        source = np.array([at[row.prompt_ids] for row in rows], np.int64)
        columns = Columns.of(rows)
        columns.trunk = np.array([seats[place].shared for place in source.tolist()], np.int64)
        logits_P_V = self._forward.logits(hidden_P)
        device = logits_P_V.device
        same = len(rows) == len(seats) and (np.diff(source) == 1).all()
        logits_B_V = logits_P_V if same else logits_P_V[tensor_of(source, device)]
        tokens, logprobs = sample(logits_B_V, columns.draw(device))
        columns.record(tokens.cpu().numpy(), logprobs.cpu().numpy())
        ended = self._ended(rows, columns)
        self._seat(rows, columns, source + first, ~ended, seats)
        return self._results(rows, columns, ended)

    def step(self) -> list[Finished]:
        """Sample the next token of every row; returns what ended with it."""
        columns = self._columns
        tokens, logprobs = sample(self._next_logits(), columns.draw(self._forward.device))
        columns.record(tokens.cpu().numpy(), logprobs.cpu().numpy())
        ended = self._ended(self._rows, columns)
        results = self._results(self._rows, columns, ended)
        if self.prefixes.keeps:
            for index in np.flatnonzero(ended).tolist():
                self._remember(index)
        self._keep(~ended)
        return results

    def _next_logits(self) -> torch.Tensor:
        """Read the last sampled token of every row; logits after it, [B, V]."""
        columns, device = self._columns, self._forward.device
        own = columns.length - columns.trunk
        reach = int(own.max())
        self._cache.reserve(len(self._rows), reach, used=len(self._rows))
        if self._branches is None:
            self._branches = branches(self._trunks, device)
        ids_B_1, places_B_1 = tensor_of(columns.last, device)[:, None], tensor_of(own - 1, device)[:, None]
        if not self._branches and (recorded := self._graphs.logits(ids_B_1, places_B_1, reach)) is not None:
            return recorded
        slots = Extend(self._cache, places_B_1, reach, trunks=self._branches)
        hidden = self._forward.hidden(ids_B_1, tensor_of(columns.length - 1, device)[:, None], slots)
        return self._forward.logits(hidden[:, 0])

    def _remember(self, index: int) -> None:
        """Keep what a row has read: all but its last token."""
        row, count, trunk = self._rows[index], int(self._columns.count[index]), self._trunks[index]
        tokens = row.prompt_ids + tuple(self._columns.tokens[index, : count - 1].tolist())
        own = len(tokens) - int(self._columns.trunk[index])
        self.prefixes.put(Entry(tokens, trunk, self._cache.read(index, own) if own else []))

    def _seat(
        self, rows: Sequence[Row], columns: Columns, source: np.ndarray, alive: np.ndarray, prompts: Sequence[Seat]
    ) -> None:
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
            longest = int((columns.length - columns.trunk)[waiting].max())
            self._cache.copy(tensor_of(source[waiting], device), torch.tensor(free, device=device), longest)
            seated.update(zip(free, waiting, strict=True))
        order = [seated[slot] for slot in range(first, first + seats)]
        self._rows += [rows[index] for index in order]
        self._trunks += [prompts[int(source[index]) - first].trunk for index in order]
        self._branches = None
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
            own, device = self._columns.length - self._columns.trunk, self._forward.device
            longest = int(own[movers].max())
            self._cache.copy(tensor_of(movers, device), tensor_of(holes, device), longest)
        self._rows = [self._rows[index] for index in order.tolist()]
        self._trunks = [self._trunks[index] for index in order.tolist()]
        self._branches = None
        self._columns = self._columns.take(order)

    def _ended(self, rows: Sequence[Row], columns: Columns) -> np.ndarray:
        stopped = (columns.stops == columns.last[:, None]).any(1) | (columns.count >= columns.limit)
        for index in np.flatnonzero(columns.texts & ~stopped).tolist():
            stopped[index] = self._stop_text(rows[index], columns, index)
        result: np.ndarray = stopped
        return result

    def _stop_text(self, row: Row, columns: Columns, index: int) -> bool:
        """Whether the last token completes one of the row's stop strings."""
        window = max(len(text.encode()) for text in row.sampling.stop) + _STOP_MARGIN
        count = int(columns.count[index])
        tail = self._tokenizer.decode(columns.tokens[index, max(0, count - window) : count].tolist())
        return any(text in tail for text in row.sampling.stop)

    def _results(self, rows: Sequence[Row], columns: Columns, ended: np.ndarray) -> list[Finished]:
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
