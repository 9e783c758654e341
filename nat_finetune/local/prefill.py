"""Reading prompts: what is known already is not computed again, and what several begin with is computed once.

Prompts that share a long beginning with one another get a `Trunk`; those that continue something in the prefix cache start
where it ends. What is left of them is read in as few forwards as fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from nat_finetune.local.forward import Forward
from nat_finetune.local.kv_cache import Extend, Layers, Prefill, SlotCache, Trunk
from nat_finetune.local.prefix_cache import Entry, Ids, PrefixCache, common_length

TRUNK_TOKENS = 64
"""Shortest beginning that becomes a trunk."""

TRUNK_SAVES = 256
"""Fewest tokens that a trunk must save its rows to attend over, each by itself: below that, one pass over all is faster."""

CONTINUED_TOKENS = 1024
"""Most tokens of a forward that continues prompts: its attention holds the scores of all of them."""


@dataclass(slots=True)
class Seat:
    """A distinct prompt, and what needs not be computed of it."""

    prompt: Ids
    trunk: Trunk | None = None
    pieces: list[tuple[Layers, int]] = field(default_factory=list)
    """Keys and values that follow the trunk, and how many tokens of each."""
    hidden: Tensor | None = None
    """What the first token's logits are made from, where all of the prompt is known."""

    @property
    def shared(self) -> int:
        """Tokens of the trunk."""
        return 0 if self.trunk is None else self.trunk.length

    @property
    def held(self) -> int:
        """Tokens of the slot that are known."""
        return sum(length for _, length in self.pieces)

    @property
    def own(self) -> int:
        """Tokens of the slot once the prompt is read."""
        return len(self.prompt) - self.shared

    @property
    def rest(self) -> int:
        """Tokens to compute."""
        return 0 if self.hidden is not None else self.own - self.held


def seats_of(counts: Mapping[Ids, int], cache: PrefixCache, forward: Forward, live: Mapping[int, int]) -> list[Seat]:
    """Distinct prompts in the order in which `read` wants them: whole ones, then continued ones, then known ones.

    Args:
        counts: how many rows ask with each prompt.
        cache: of earlier sequences.
        forward: computes trunks.
        live: rows under way by the `id` of the trunk that they continue.
    """
    seats = {prompt: _continued(prompt, cache) for prompt in counts}
    if forward.shares:
        fresh = {prompt: count for prompt, count in counts.items() if seats[prompt].rest == len(prompt)}
        members = dict(_beginnings(fresh))
        for tokens, (trunk, hidden) in _read_trunks(list(members), forward).items():
            for prompt in members[tokens]:
                seats[prompt] = Seat(prompt, trunk, hidden=hidden if prompt == tokens else None)
    users = Counter(live)
    for prompt, seat in seats.items():
        users[id(seat.trunk)] += counts[prompt]
    for seat in seats.values():
        if seat.trunk is not None and users[id(seat.trunk)] < 2:  # nobody to share it with
            seat.pieces.insert(0, (seat.trunk.layers, seat.trunk.length))
            seat.trunk = None
    return sorted(seats.values(), key=lambda seat: (seat.rest == 0, seat.rest < len(seat.prompt), seat.rest))


def _continued(prompt: Ids, cache: PrefixCache) -> Seat:
    found = cache.find(prompt)
    if found is None:
        return Seat(prompt)
    entry, length = found
    if length == len(prompt) and (length < len(entry.tokens) or entry.hidden is None):
        length -= 1  # the last token must be read for its logits
    hidden = entry.hidden if length == len(prompt) else None
    if entry.trunk is None:
        return Seat(prompt, None, [(entry.tail, length)], hidden)
    if length < entry.trunk.length:
        return Seat(prompt, None, [(entry.trunk.layers, length)], hidden)
    tail = length - entry.trunk.length
    return Seat(prompt, entry.trunk, [(entry.tail, tail)] if tail else [], hidden)


def _beginnings(counts: Mapping[Ids, int]) -> Iterator[tuple[Ids, list[Ids]]]:
    """Long beginnings that rows share, with the prompts that have them; each prompt in one at most.

    Sorted, prompts that begin alike stand together. A run takes the next prompt in while that saves more than it loses.
    """
    run: list[Ids] = []
    length = rows = 0
    for prompt in [*sorted(counts), ()]:
        if run and prompt:
            common = common_length(run[0][:length], prompt)
            if common >= TRUNK_TOKENS and common * (rows + counts[prompt] - 1) >= length * (rows - 1):
                run, length, rows = [*run, prompt], common, rows + counts[prompt]
                continue
        if run and length >= TRUNK_TOKENS and length * (rows - 1) >= TRUNK_SAVES:
            yield run[0][:length], run
        if prompt:
            run, length, rows = [prompt], len(prompt), counts[prompt]


def _read_trunks(beginnings: Sequence[Ids], forward: Forward) -> dict[Ids, tuple[Trunk, Tensor]]:
    """A trunk of each beginning, and what stands after its last token."""
    if not beginnings:
        return {}
    seats = sorted((Seat(tokens) for tokens in beginnings), key=lambda seat: seat.rest)
    cache = SlotCache()
    cache.reserve(len(seats), room_for(seats, forward), used=0)
    hidden_P = read(seats, forward, cache, 0)
    return {
        seat.prompt: (Trunk(cache.read(slot, seat.own), seat.own), hidden_P[slot].clone()) for slot, seat in enumerate(seats)
    }


def room_for(seats: Sequence[Seat], forward: Forward) -> int:
    """Positions of a slot that `read` writes to, padding included."""
    return max(
        (
            max(seat.held for seat in seats[start:end]) + max(seat.rest for seat in seats[start:end])
            for start, end in _passes(seats, forward)
        ),
        default=1,
    )


def read(seats: Sequence[Seat], forward: Forward, cache: SlotCache, first: int) -> Tensor:
    """Put prompts into the slots from `first` on; returns what stands after each, [P, …] (see `Forward.logits`)."""
    for place, seat in enumerate(seats):
        start = 0
        for layers, length in seat.pieces:
            cache.write(first + place, start, layers, length)
            start += length
    parts = [_read_pass(seats[start:end], forward, cache, first + start) for start, end in _passes(seats, forward)]
    known = [seat.hidden for seat in seats if seat.hidden is not None]
    return torch.cat([*parts, *([torch.stack(known)] if known else [])])


def _passes(seats: Sequence[Seat], forward: Forward) -> Iterator[tuple[int, int]]:
    """Runs of seats that one forward reads: of a kind, and within its size."""
    start = 0
    while start < len(seats) and seats[start].rest:
        end = start + 1
        whole = seats[start].rest == len(seats[start].prompt)
        most = forward.pass_tokens if whole else min(forward.pass_tokens, CONTINUED_TOKENS)
        while (
            end < len(seats)
            and seats[end].rest
            and (seats[end].rest == len(seats[end].prompt)) == whole
            and (end + 1 - start) * seats[end].rest <= most
        ):
            end += 1
        yield start, end
        start = end


def _read_pass(seats: Sequence[Seat], forward: Forward, cache: SlotCache, first: int) -> Tensor:
    device, rows, width = forward.device, len(seats), max(seat.rest for seat in seats)
    ids = np.zeros((rows, width), np.int64)
    for row, seat in enumerate(seats):
        ids[row, : seat.rest] = seat.prompt[len(seat.prompt) - seat.rest :]
    along = torch.arange(width, device=device)
    held = torch.tensor([seat.held for seat in seats], device=device)[:, None] + along
    slots: Prefill | Extend
    if seats[0].rest == len(seats[0].prompt):
        positions = along.expand(rows, -1)
        slots = Prefill(cache, first, positions)
    else:
        positions = torch.tensor([seat.shared for seat in seats], device=device)[:, None] + held
        reach = max(seat.held for seat in seats) + width
        slots = Extend(cache, held, reach, first=first, trunks=branches([seat.trunk for seat in seats], device))
    hidden = forward.hidden(torch.from_numpy(ids).to(device), positions, slots)
    last = torch.tensor([seat.rest - 1 for seat in seats], device=device)
    return hidden[torch.arange(rows, device=device), last]


def branches(trunks: Sequence[Trunk | None], device: torch.device) -> list[tuple[Trunk, Tensor]]:
    """Each trunk with the rows that continue it."""
    rows: dict[int, tuple[Trunk, list[int]]] = {}
    for row, trunk in enumerate(trunks):
        if trunk is not None:
            rows.setdefault(id(trunk), (trunk, []))[1].append(row)
    return [(trunk, torch.tensor(mine, device=device)) for trunk, mine in rows.values()]


def entry_of(seat: Seat, cache: SlotCache, slot: int, hidden: Tensor) -> Entry:
    """A prompt that was read into a slot, to be kept."""
    return Entry(seat.prompt, seat.trunk, cache.read(slot, seat.own) if seat.own else [], hidden.clone())
