"""Rows of tokens to micro-batches: the only code that pads, and the only code that decides what shares a forward pass.

A row is a sequence in which some tokens are trained. What a model must read of it is its *input*: everything before its last
trained token. A row whose input is the beginning of another's (or equal to it) needs no forward pass of its own: the model is
causal, so the other's hidden states are its own. Eight one-token answers to one prompt cost one row, and so does a candidate
that stands in ten preference pairs.

Values of a row's tokens are kept flat, all rows behind one another (`_N`); a micro-batch is padded on the right by index
arithmetic, without Python per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nat_finetune.errors import DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward and backward pass works on: `R` rows of `T` tokens, read from `L` inputs."""

    rows: Ints
    """Numbers of the rows, `[R]`."""
    input_ids_L_T: Tensor
    """What the model reads; padding is 0 and on the right, where a causal model never looks at it."""
    source_R: Tensor
    """The input of each row."""
    token_ids_R_T: Tensor
    """The rows' tokens; `T` may exceed that of the inputs by what no prediction needs."""
    loss_mask_R_T: Tensor
    """True where a token is trained; False in padding."""
    columns: Mapping[str, Tensor]
    """Further values of the tokens, float32 `[R, T]`, 0 in padding."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rows share a forward pass; the numbers are those of `Rows`."""

    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    """For each input the row whose input it is."""
    sources: tuple[int, ...]
    """For each row its place in `inputs`."""
    units: tuple[int, ...]
    """Places, in the given sequence of units, of those that are in this micro-batch."""


@dataclass(slots=True)
class Rows:
    """All rows of an update, flat. Make them with `Rows.of`."""

    token_ids_N: Ints
    loss_mask_N: NDArray[np.bool_]
    starts: Ints
    """Where each row begins, and, last, where they end: `[rows + 1]`."""
    columns: dict[str, Floats] = field(default_factory=dict)
    """By name: a value of each token."""

    @classmethod
    def of(cls, token_ids: Sequence[Sequence[int]], loss_masks: Sequence[Sequence[int]]) -> Rows:
        """Rows of these tokens; a mask is 1 where a token is trained.

        Raises:
            DataError: a mask is not as long as its row, nothing of a row is trained, or its first token is.
        """
        lengths = np.array([len(ids) for ids in token_ids], np.int64)
        wrong = [index for index, mask in enumerate(loss_masks) if len(mask) != lengths[index]]
        if len(loss_masks) != len(token_ids) or wrong:
            raise DataError(f"a mask for every token of every row: rows {wrong[:5]} differ from theirs")
        rows = cls(
            token_ids_N=_flat(token_ids, np.int64),
            loss_mask_N=_flat(loss_masks, np.bool_),
            starts=np.concatenate([[0], lengths.cumsum()]).astype(np.int64),
        )
        for index, (start, end) in enumerate(pairwise(rows.starts.tolist())):
            if start == end or not rows.loss_mask_N[start:end].any():
                raise DataError(f"row {index} has no trained token; leave it out")
            if rows.loss_mask_N[start]:
                raise DataError(f"row {index}: its first token is trained, but nothing predicts it")
        return rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Ints:
        """Tokens of each row."""
        return np.diff(self.starts)

    @property
    def trained_tokens(self) -> Ints:
        """Trained tokens of each row."""
        counts: Ints = np.add.reduceat(self.loss_mask_N.astype(np.int64), self.starts[:-1])
        return counts

    def add_column(self, name: str, values: Sequence[Sequence[float]]) -> None:
        """Give each token of each row a value."""
        self.columns[name] = self._sized(_flat(values, np.float32))

    def new_column(self, name: str) -> None:
        """A column of zeros, to be filled by `store`."""
        self.columns[name] = np.zeros(len(self.token_ids_N), np.float32)

    def store(self, name: str, batch: MicroBatch, values_R_T: Tensor) -> None:
        """Write a micro-batch's values into a column, at the rows' own tokens."""
        grid_R_T, real_R_T = self._grid(batch.rows)
        self.columns[name][grid_R_T[real_R_T]] = values_R_T.detach().to("cpu", torch.float32).numpy()[real_R_T]

    def micro_batch(self, plan: Plan, device: torch.device) -> MicroBatch:
        """The padded tensors of a plan."""
        grid_R_T, real_R_T = self._grid(np.array(plan.rows, np.int64))
        inputs = np.array(plan.inputs, np.int64)
        starts_L, ends_L = self.starts[inputs], self._input_ends()[inputs]
        grid_L_T, real_L_T = _padded(starts_L, ends_L - starts_L)

        def on_device(values: NDArray[np.generic], real: NDArray[np.bool_]) -> Tensor:
            return torch.from_numpy(np.where(real, values, values.dtype.type(0))).to(device)

        return MicroBatch(
            rows=np.array(plan.rows, np.int64),
            input_ids_L_T=on_device(self.token_ids_N[grid_L_T], real_L_T),
            source_R=torch.tensor(plan.sources, device=device),
            token_ids_R_T=on_device(self.token_ids_N[grid_R_T], real_R_T),
            loss_mask_R_T=on_device(self.loss_mask_N[grid_R_T], real_R_T),
            columns={name: on_device(flat[grid_R_T], real_R_T) for name, flat in self.columns.items()},
        )

    def plans(self, units: Sequence[Sequence[int]], *, max_tokens: int) -> list[Plan]:
        """Sort units into micro-batches of at most `max_tokens` tokens that the model reads, padding included.

        Args:
            units: rows that must share a micro-batch, such as both sides of a pair. A unit that is larger than `max_tokens`
                by itself gets a micro-batch of its own.
            max_tokens: the budget.
        """
        leaf_of, ranks = self._leaves(sorted({row for unit in units for row in unit}))
        ends = self._input_ends() - self.starts[:-1]
        order = _in_clusters([[leaf_of[row] for row in unit] for unit in units], ends, ranks)
        return [self._plan(units, chosen, leaf_of) for chosen in _budgeted(order, units, leaf_of, ends, max_tokens)]

    def _plan(self, units: Sequence[Sequence[int]], chosen: Sequence[int], leaf_of: Mapping[int, int]) -> Plan:
        rows = tuple(dict.fromkeys(row for unit in chosen for row in units[unit]))
        inputs = tuple(dict.fromkeys(leaf_of[row] for row in rows))
        place = {leaf: at for at, leaf in enumerate(inputs)}
        return Plan(rows, inputs, tuple(place[leaf_of[row]] for row in rows), tuple(chosen))

    def _leaves(self, rows: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """For each row the row whose input begins with its own (mostly itself), and the rank of each in sorted order."""
        ends = self._input_ends()
        # Big-endian bytes sort like the numbers, and a beginning is followed by what it begins.
        keys = {row: self.token_ids_N[self.starts[row] : ends[row]].astype(">u4").tobytes() for row in rows}
        order = sorted(rows, key=keys.__getitem__)
        leaf_of: dict[int, int] = {}
        for row, following in zip(reversed(order), [None, *reversed(order[1:])], strict=True):
            shared = following is not None and keys[following].startswith(keys[row])
            leaf_of[row] = leaf_of[following] if shared and following is not None else row
        return leaf_of, {row: rank for rank, row in enumerate(order)}

    def _input_ends(self) -> Ints:
        """Where each row's last trained token is: what the model reads ends before it."""
        positions = np.flatnonzero(self.loss_mask_N)
        last: Ints = positions[np.searchsorted(positions, self.starts[1:]) - 1]
        return last

    def _grid(self, rows: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        return _padded(self.starts[rows], self.lengths[rows])

    def _sized(self, values: Floats) -> Floats:
        if len(values) != len(self.token_ids_N):
            raise DataError(f"a column needs a value for each of {len(self.token_ids_N)} tokens, found {len(values)}")
        return values


def _flat(rows: Sequence[Sequence[float]], dtype: type[np.generic]) -> NDArray[Any]:
    parts = [np.asarray(row, dtype) for row in rows]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _padded(starts: Ints, lengths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Flat places of right-padded rows, and which of them are real; padding points at its row's first token."""
    steps = np.arange(int(lengths.max()))
    real = steps < lengths[:, None]
    return starts[:, None] + np.where(real, steps, 0), real


def _in_clusters(leaves: Sequence[Sequence[int]], ends: Ints, ranks: Mapping[int, int]) -> list[int]:
    """Units in an order that keeps those together which read the same inputs, short ones first."""
    head = {leaf: leaf for unit in leaves for leaf in unit}

    def find(leaf: int) -> int:
        while head[leaf] != leaf:
            head[leaf] = head[head[leaf]]
            leaf = head[leaf]
        return leaf

    for unit in leaves:
        for other in unit[1:]:
            head[find(other)] = find(unit[0])
    longest: dict[int, int] = {}
    for leaf in head:
        longest[find(leaf)] = max(longest.get(find(leaf), 0), int(ends[leaf]))

    def key(unit: int) -> tuple[int, int, list[int]]:
        cluster = find(leaves[unit][0])
        return longest[cluster], ranks[cluster], [ranks[leaf] for leaf in leaves[unit]]

    return sorted(range(len(leaves)), key=key)


def _budgeted(
    order: Sequence[int], units: Sequence[Sequence[int]], leaf_of: Mapping[int, int], ends: Ints, max_tokens: int
) -> Iterator[list[int]]:
    """Cut the order where the inputs of a micro-batch, padded to the longest, would exceed the budget."""
    chosen: list[int] = []
    inputs: set[int] = set()
    longest = 0
    for unit in order:
        more = {leaf_of[row] for row in units[unit]}
        reach = max(longest, *(int(ends[leaf]) for leaf in more))
        if chosen and len(inputs | more) * reach > max_tokens:
            yield chosen
            chosen, inputs, longest = [], set(), 0
            reach = max(int(ends[leaf]) for leaf in more)
        chosen.append(unit)
        inputs |= more
        longest = reach
    if chosen:
        yield chosen
