"""How often models find the side that reviewers chose, on held-out records (TRL's conversational form, JSONL).

    python benchmarks/preference_accuracy.py reviews_test.jsonl builtin:claims-review EXPORTED_FOLDER

The first model is the base. Prints one JSON line a model: the share of records whose chosen side is the likelier, and of the
others also the share whose chosen side gained more over the base (the implicit reward), with intervals over task keys.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from nat_finetune.data.intervals import estimate
from nat_finetune.local.model import load_model
from nat_finetune.local.policy import LocalPolicy

ROOM = 512
"""Most tokens of a completion, the end of the turn included."""


async def margins(source: str, rows: list[dict]) -> list[float]:
    """Log-probability of the chosen side less that of the rejected one, nats."""
    policy = LocalPolicy("policy", load_model(source))
    try:
        prompts = [row["prompt"] for row in rows]
        sides = [[row[side][0]["content"] for side in ("chosen", "rejected")] for row in rows]
        return [chosen - other for chosen, other in await policy.score(prompts, sides, temperature=1.0, max_tokens=ROOM)]
    finally:
        policy.close()


def share(gaps: list[float], rows: list[dict]) -> dict[str, float | int | None]:
    """Of gaps above 0; a gap of 0 is half a hit."""
    scores = {str(at): 0.5 if gap == 0 else float(gap > 0) for at, gap in enumerate(gaps)}
    found = estimate(scores, {str(at): str(row["task_key"]) for at, row in enumerate(rows)}, seed=7)
    return {"mean": found.mean, "low": found.low, "high": found.high, "task_keys": found.n}


def main(records: Path, sources: list[str]) -> None:
    rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    base = asyncio.run(margins(sources[0], rows))
    print(json.dumps({"model": sources[0], "records": len(rows), "likelier": share(base, rows)}))
    for source in sources[1:]:
        gaps = asyncio.run(margins(source, rows))
        implicit = share([after - before for after, before in zip(gaps, base, strict=True)], rows)
        print(json.dumps({"model": source, "records": len(rows), "likelier": share(gaps, rows), "implicit_reward": implicit}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
