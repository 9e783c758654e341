"""Writes `data/*.jsonl`: `python -m nat_finetune_workflows.claims_review.make_data [FOLDER]`; seeded, so reproducible.

`claims_*` are claims with their right drafts; `reviews_*` are the reviewer records on the claims of the same split, three a
claim, 6,000 in all. Splits share no claim: everything but the invoice's amount is the task key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from nat_finetune_workflows.claims_review.annotators import AnnotatorModel
from nat_finetune_workflows.claims_review.claims import (
    DAYS,
    LARGEST,
    PERILS,
    PLACES,
    PRODUCTS,
    SEVERITIES,
    Claim,
    Decision,
    estimated_damage,
    right_answer,
    terms,
)
from nat_finetune_workflows.claims_review.drafts import Draft, fit_draft, writable_drafts
from nat_finetune_workflows.claims_review.prompts import Style, explain_messages
from nat_finetune_workflows.claims_review.sandbox import best_plan, run_plan

from nat_finetune.data.seeds import derive_seed

SEED = 20261130
SIZES = {"train": 1500, "validation": 150, "test": 350}
REVIEWS = 3
"""Records of each claim."""
SHARES = {"excluded": 0.2, "late": 0.2, "below": 0.1, "payable": 0.5}
"""How often each kind of claim comes up; drawn evenly, half of all claims would be excluded or late."""


def kind(claim: Claim) -> str:
    """Which of `SHARES` a claim is."""
    found = terms(claim)
    if not found.covered:
        return "excluded"
    if not found.in_time:
        return "late"
    return "payable" if right_answer(claim).decision is Decision.PAY else "below"


def task_key(claim: Claim) -> str:
    """Claims that differ in the invoice's amount alone are one task."""
    invoice = "estimate" if claim.invoice is None else "invoice"
    return f"{claim.product}-{claim.peril}-{claim.place}-{claim.severity}-{claim.days}-{invoice}"


def draw_claim(generator: Random) -> Claim:
    """Any claim; an invoice, in half of the files, is within a half and twice of the usual cost."""
    claim = Claim(
        generator.choice(PRODUCTS),
        generator.choice(PERILS),
        generator.choice(list(PLACES)),
        generator.choice(list(SEVERITIES)),
        generator.choice(DAYS),
        None,
    )
    if generator.random() < 0.5:
        return claim
    cost = estimated_damage(claim) * generator.choice((0.5, 0.75, 1.0, 1.5, 2.0))
    invoice = min(LARGEST, max(100, round(cost / 100) * 100))
    return Claim(claim.product, claim.peril, claim.place, claim.severity, claim.days, invoice)


def draw_claims(count: int, generator: Random, taken: set[str]) -> list[Claim]:
    """`count` claims in the proportions of `SHARES`, in random order, none of a task that is in `taken`, which grows."""
    claims: list[Claim] = []
    for wanted, share in SHARES.items():
        missing = round(count * share)
        while missing:
            claim = draw_claim(generator)
            if kind(claim) == wanted and task_key(claim) not in taken:
                taken.add(task_key(claim))
                claims.append(claim)
                missing -= 1
    generator.shuffle(claims)
    return claims


def claim_rows(claims: Iterable[Claim], split: str) -> Iterator[dict[str, object]]:
    """One row a claim."""
    for index, claim in enumerate(claims):
        answer = str(fit_draft(claim))
        yield {"id": f"{split}-{index:04d}", "question": str(claim), "answer": answer, "task_key": task_key(claim)}


def draw_drafts(claim: Claim, generator: Random) -> tuple[Draft, Draft]:
    """Two drafts to compare, any two alike: as the shipped policy writes them, so that labels alone say which are good."""
    first, second = generator.sample(writable_drafts(run_plan(claim, best_plan(claim))), 2)
    return first, second


def review_rows(claims: Iterable[Claim], split: str, model: AnnotatorModel, style: Style) -> Iterator[dict[str, object]]:
    """`REVIEWS` records a claim, each on two drafts of its own."""
    generator = Random(derive_seed(SEED, "reviews", split))
    for claim in claims:
        for _ in range(REVIEWS):
            first, second = draw_drafts(claim, generator)
            reviewer, chosen, rejected = model.judge(claim, first, second, generator)
            yield {
                "task_key": task_key(claim),
                "prompt": explain_messages(claim, run_plan(claim, best_plan(claim)), style),
                "chosen": [{"role": "assistant", "content": str(chosen)}],
                "rejected": [{"role": "assistant", "content": str(rejected)}],
                "reviewer": reviewer.name,
            }


def main(folder: Path, style: Style = "tiny", model: AnnotatorModel | None = None) -> None:
    """Write all files."""
    generator, taken = Random(SEED), set[str]()
    for split, count in SIZES.items():
        claims = draw_claims(count, generator, taken)
        write(folder / f"claims_{split}.jsonl", claim_rows(claims, split))
        write(folder / f"reviews_{split}.jsonl", review_rows(claims, split, model or AnnotatorModel(), style))


def write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    """One JSON object a line, without the blanks that JSON does not need."""
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
