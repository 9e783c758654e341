"""Writes `data/*.jsonl`: `python -m nat_finetune_workflows.tool_calling.make_data [FOLDER]`; seeded, so reproducible.

A task is a call, and its task key: no call of a split is wanted in another. Within each tool, calls are dealt out in proportion
to `SHARES`. Training rows ask for a call in two of its wordings, held-out rows in one.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nat_finetune_workflows.tool_calling.tools import TOOLS, Call, all_calls

SEED = 20261201
SHARES = {"train": 0.5, "validation": 0.15, "test": 0.35}
WORDINGS_SHOWN = {"train": 2, "validation": 1, "test": 1}
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "set_light": (
        "make the {room} light {colour}",
        "turn the light in the {room} {colour}",
        "{colour} light in the {room} please",
    ),
    "set_heating": (
        "heat the {room} to {degrees}",
        "set the heating in the {room} to {degrees}",
        "{degrees} degrees in the {room} please",
    ),
    "play_music": ("play {genre} in the {room}", "put on some {genre} in the {room}", "{genre} in the {room} please"),
    "book_table": (
        "book a table for {guests} on {day}",
        "reserve a table on {day} for {guests}",
        "table for {guests} on {day} please",
    ),
    "remind": ("remind {person} on {day}", "send {person} a reminder on {day}", "{day} reminder for {person} please"),
    "call_person": ("call {person}", "phone {person} please", "get {person} on the phone"),
    "get_weather": ("how is the weather on {day}", "weather on {day} please", "tell me the weather on {day}"),
}


def split(seed: int) -> dict[str, list[Call]]:
    """Calls by split, each tool's in proportion."""
    parts: dict[str, list[Call]] = {name: [] for name in SHARES}
    for index, tool in enumerate(TOOLS):
        calls = [call for call in all_calls() if call.name == tool]
        random.Random(seed + index).shuffle(calls)
        first, second = round(len(calls) * SHARES["train"]), round(len(calls) * (SHARES["train"] + SHARES["validation"]))
        parts["train"] += calls[:first]
        parts["validation"] += calls[first:second]
        parts["test"] += calls[second:]
    return parts


def wordings(call: Call) -> list[str]:
    """Every request that means the call."""
    return [wording.format(**call.arguments) for wording in WORDINGS[call.name]]


def rows(calls: list[Call], shown: int, generator: random.Random) -> Iterator[dict[str, str]]:
    """`shown` rows a call."""
    for call in calls:
        key = " ".join([call.name, *map(str, call.arguments.values())])
        for request in sorted(generator.sample(wordings(call), shown)):
            yield {"id": request.replace(" ", "-"), "question": request, "answer": call.to_json(), "task_key": key}


def main(folder: Path) -> None:
    """Write all files."""
    generator = random.Random(SEED)
    for name, calls in split(SEED).items():
        lines = [json.dumps(row) for row in rows(calls, WORDINGS_SHOWN[name], generator)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
