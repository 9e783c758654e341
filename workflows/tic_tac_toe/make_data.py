"""Writes `data/*.jsonl`: `python -m nat_finetune_workflows.tic_tac_toe.make_data [FOLDER]`; seeded, so reproducible.

Positions are split by canonical form, which is their task key: no position of a split is a rotation, reflection or
transposition of one in another. Training rows show a position through all its symmetries, held-out rows through one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from nat_finetune_workflows.tic_tac_toe.game import (
    FREE,
    SIDES,
    SYMMETRIES,
    Board,
    canonical,
    is_over,
    positions,
    to_move,
    transform,
)
from nat_finetune_workflows.tic_tac_toe.solver import is_critical, optimal_moves

SEED = 20261130
OPENING_PLIES = 3
SHORT = {"train": 160, "test": 72}
"""Rows of the `move_*_short` files: for models that take seconds an update, one view of as many canonical positions."""
SHARES = {"train": 0.5, "validation": 0.15, "test": 0.35}


def split(boards: list[Board], seed: int) -> dict[str, list[Board]]:
    """Canonical positions by split, in proportion to `SHARES` within each number of plies."""
    parts: dict[str, list[Board]] = {name: [] for name in SHARES}
    for plies in range(10):
        same = sorted(board for board in boards if 9 - board.count(FREE) == plies)
        random.Random(seed + plies).shuffle(same)
        first, second = round(len(same) * SHARES["train"]), round(len(same) * (SHARES["train"] + SHARES["validation"]))
        parts["train"] += same[:first]
        parts["validation"] += same[first:second]
        parts["test"] += same[second:]
    return parts


def canonical_positions() -> list[Board]:
    """Every position up to symmetry in which the game goes on."""
    return sorted({canonical(board) for board in positions() if not is_over(board)})


def views(board: Board, name: str) -> list[Board]:
    """The boards through which a canonical position is shown in a split."""
    return sorted({transform(board, symmetry) for symmetry in SYMMETRIES}) if name == "train" else [board]


def game_rows(boards: list[Board], name: str) -> Iterator[dict[str, object]]:
    """One row per opening, view and side."""
    for key in boards:
        for board in views(key, name):
            for side in SIDES:
                yield {"id": f"game-{board}-{side}", "question": f"{board}|{side}", "answer": "win", "task_key": key}


def move_rows(boards: list[Board], name: str) -> Iterator[dict[str, object]]:
    """One row per position and view; the side to move is the policy's."""
    for key in boards:
        for board in views(key, name):
            yield {
                "id": f"move-{board}",
                "question": f"{board}|{to_move(board)}",
                "answer": " ".join(str(square + 1) for square in optimal_moves(board)),
                "task_key": key,
                "critical": is_critical(board),
            }


def short_rows(boards: list[Board], name: str) -> list[dict[str, object]]:
    """Rows of a few positions of a split, in random order, each through one random view."""
    generator = random.Random(SEED)
    chosen = generator.sample(sorted(boards), SHORT[name])
    views_of = [transform(board, generator.choice(SYMMETRIES)) for board in chosen]
    return [{**row, "task_key": canonical(str(row["id"])[5:])} for row in move_rows(views_of, "test")]


def main(folder: Path) -> None:
    """Write all files."""
    everything = canonical_positions()
    openings = [board for board in everything if 9 - board.count(FREE) <= OPENING_PLIES]
    for kind, boards, rows in (("game", openings, game_rows), ("move", everything, move_rows)):
        for name, part in split(boards, SEED).items():
            write(folder / f"{kind}_{name}.jsonl", rows(part, name))
            if kind == "move" and name in SHORT:
                write(folder / f"move_{name}_short.jsonl", short_rows(part, name))


def write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """One JSON object a line."""
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
