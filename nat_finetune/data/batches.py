"""Rows of tokens to micro-batches.

A row is a sequence in which some tokens are trained; `sharing` says which rows are read together, `layout` where they stand.
Values of a row's tokens are kept flat, all rows behind one another (`_N`); a micro-batch pads them on the right by index
arithmetic, without Python per token.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nat_finetune.data.layout import Part, lay_out
from nat_finetune.data.sharing import Ints, Plan, plan_units
from nat_finetune.errors import DataError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward and backward pass works on: `R` rows of `T` tokens, read as `L` sequences."""

    rows: Ints
    """Numbers of the rows, `[R]`."""
    input_ids_L_T: Tensor
    """What the model reads; padding is 0 and on the right, where a causal model never looks at it."""
    positions_L_T: Tensor
    """The position of each read token in the rows that it belongs to."""
    parts: tuple[Part, ...] | None
    """Which tokens each token sees, where a sequence holds trees; None: all before it and itself."""
    places_R_T: Tensor
    """For each token of each row where it stands in the read ones, `[L * T]`; 0 behind the last one that is read."""
    token_ids_R_T: Tensor
    """The rows' tokens; `T` may exceed that of the inputs by what no prediction needs."""
    loss_mask_R_T: Tensor
    """True where a token is trained; False in padding."""
    columns: Mapping[str, Tensor]
    """Further values of the tokens, float32 `[R, T]`, 0 in padding."""


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

    def add_column(self, name: str, values: Sequence[Sequence[float] | Floats]) -> None:
        """Give each token of each row a value."""
        self.columns[name] = self._sized(_flat(values, np.float32))

    def without_columns(self, names: Container[str]) -> Rows:
        """The same rows without these columns."""
        return replace(self, columns={name: values for name, values in self.columns.items() if name not in names})

    def new_column(self, name: str) -> None:
        """A column of zeros, to be filled by `store`."""
        self.columns[name] = np.zeros(len(self.token_ids_N), np.float32)

    def store(self, name: str, batch: MicroBatch, values_R_T: Tensor) -> None:
        """Write a micro-batch's values into a column, at the rows' own tokens."""
        grid_R_T, real_R_T = self._grid(batch.rows)
        self.columns[name][grid_R_T[real_R_T]] = values_R_T.detach().to("cpu", torch.float32).numpy()[real_R_T]

    def micro_batch(self, plan: Plan, device: torch.device) -> MicroBatch:
        """The padded tensors of a plan."""
        rows = np.array(plan.rows, np.int64)
        grid_R_T, real_R_T = self._grid(rows)
        inputs = self._inputs({leaf for tree in plan.trees for leaf in tree.leaves})
        read = lay_out(plan.trees, inputs, packed=plan.packed, multiple=plan.multiple)

        def on_device(flat_N: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.where(real_R_T, flat_N[grid_R_T], flat_N.dtype.type(0))).to(device)

        places_R_T = np.zeros(grid_R_T.shape, np.int64)
        sizes = (self._input_ends() - self.starts[:-1])[rows].tolist()
        for place, (leaf, size) in enumerate(zip(plan.leaves, sizes, strict=True)):
            places_R_T[place, :size] = read.paths[leaf][:size]
        return MicroBatch(
            rows=rows,
            input_ids_L_T=torch.from_numpy(read.ids_L_T).to(device),
            positions_L_T=torch.from_numpy(read.positions_L_T).to(device),
            parts=read.parts,
            places_R_T=torch.from_numpy(places_R_T).to(device),
            token_ids_R_T=on_device(self.token_ids_N),
            loss_mask_R_T=on_device(self.loss_mask_N),
            columns={name: on_device(flat_N) for name, flat_N in self.columns.items()},
        )

    def plans(
        self,
        units: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        tree_tokens: int = 0,
        packed: bool = False,
        multiple: int = 1,
    ) -> list[Plan]:
        """Sort units into micro-batches of at most `max_tokens` tokens that the model reads, padding included.

        Args:
            units: rows that must share a micro-batch, such as both sides of a pair. A unit that is larger than `max_tokens`
                by itself gets a micro-batch of its own, with those that read nothing else.
            max_tokens: the budget.
            tree_tokens: most tokens of a tree of inputs that begin alike, which may exceed the budget; 0: no trees, for models
                whose attention can't.
            packed: all of a micro-batch in one sequence; else one a sequence.
            multiple: of a packed sequence's length, to which it is filled up at its end.
        """
        inputs = self._inputs({row for unit in units for row in unit})
        return plan_units(inputs, units, max_tokens=max_tokens, tree_tokens=tree_tokens, packed=packed, multiple=multiple)

    def _inputs(self, rows: Iterable[int]) -> dict[int, Ints]:
        starts, ends = self.starts, self._input_ends()
        return {row: self.token_ids_N[starts[row] : ends[row]] for row in sorted(rows)}

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


def _flat(rows: Sequence[Sequence[float] | Floats], dtype: type[np.generic]) -> NDArray[Any]:
    parts = [np.asarray(row, dtype) for row in rows]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _padded(starts: Ints, lengths: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Flat places of right-padded rows, and which of them are real; padding points at its row's first token."""
    steps = np.arange(int(lengths.max()))
    real = steps < lengths[:, None]
    return starts[:, None] + np.where(real, steps, 0), real
