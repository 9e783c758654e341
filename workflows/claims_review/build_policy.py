"""Builds the policy that ships with the workflow: `python -m nat_finetune_workflows.claims_review.build_policy FOLDER`.

A small Llama with a vocabulary of its own learns to answer with any plan, each as likely as another, and to write any draft
that the findings allow, each as likely as another, the unfit as often as the fit. It knows the forms and how to copy an amount
or a clause, and nothing of what makes a plan or a draft good: what training adds is measured from there. Seeded; on one machine
the same call gives the same bits.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nat_finetune_workflows.claims_review.claims import (
    DAYS,
    LARGEST,
    PERILS,
    PLACES,
    PRODUCTS,
    SEVERITIES,
    Claim,
    terms,
)
from nat_finetune_workflows.claims_review.drafts import writable_drafts
from nat_finetune_workflows.claims_review.make_data import draw_claim
from nat_finetune_workflows.claims_review.prompts import Messages, explain_messages, plan_messages, plan_text
from nat_finetune_workflows.claims_review.sandbox import PLANS, Tool, best_plan, run_plan
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 7
STEPS = 800
BATCH = 48
LEARNING_RATE = 2e-3
INITIAL_SPREAD = 0.08
"""Near 1 / sqrt(width); the usual 0.02 is meant for wider models."""
SPECIAL = ["<pad>", "<eos>", "<system>", "<user>", "<assistant>", "<unk>"]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary() -> list[str]:
    """Every word and mark of the workflow's prompts, plans and drafts, special tokens first."""
    claims = [Claim(product, peril, "shed", "light", 1, None) for product in PRODUCTS for peril in PERILS]
    found = [terms(claim) for claim in claims]
    clauses = {c for t in found for c in (t.clause, t.notice_clause, t.deductible_clause)}
    prompts = "Plan Explain days invoice none unknown terms covered excluded notice timely late deductible limit loss payable"
    drafts = "Recommend paying declining referring under clause the policy subject to review hereby authorised"
    numbers = [*DAYS, *range(0, LARGEST + 1, 100)]
    words = [*prompts.split(), *drafts.split(), *Tool, *PRODUCTS, *PERILS, *PLACES, *SEVERITIES, *sorted(clauses)]
    return [*SPECIAL, ":", ",", ".", *(f"▁{word}" for word in (*words, *numbers))]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word or mark; pad and end of turn differ; a text comes back as it was."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary())}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split(Regex("[:,.]"), "isolated")]
    )
    words.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<system>", "<user>", "<assistant>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Untrained."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=INITIAL_SPREAD,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True, slots=True)
class Lesson:
    """A conversation and the answers that are equally right; one of them is shown."""

    messages: Messages
    answers: list[str]
    shown: str


def lessons(generator: random.Random) -> Iterator[Lesson]:
    """Planning and writing in turn; the findings are those of the best plan or of any."""
    plans = [plan_text(plan) for plan in PLANS]
    while True:
        yield Lesson(plan_messages(draw_claim(generator), "tiny"), plans, generator.choice(plans))
        claim = draw_claim(generator)
        found = run_plan(claim, best_plan(claim) if generator.random() < 0.5 else generator.choice(PLANS))
        drafts = [str(draft) for draft in writable_drafts(found)]
        yield Lesson(explain_messages(claim, found, "tiny"), drafts, generator.choice(drafts))


def encode(tokenizer: Any, batch: list[Lesson]) -> tuple[Tensor, Tensor]:
    """Ids (B, T), padded on the right, and what may follow each (B, T, V): the share of the answers that go on with it."""
    ids = [tokenizer.apply_chat_template(lesson.messages, add_generation_prompt=True, return_dict=False) for lesson in batch]
    answers = [[[*row, tokenizer.eos_token_id] for row in tokenizer(lesson.answers)["input_ids"]] for lesson in batch]
    shown = [rows[lesson.answers.index(lesson.shown)] for lesson, rows in zip(batch, answers, strict=True)]
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(ids, shown, strict=True))
    ids_B_T = torch.full((len(batch), longest), tokenizer.pad_token_id)
    targets_B_T_V = torch.zeros(len(batch), longest, len(tokenizer))
    for row, (prompt, answer, others) in enumerate(zip(ids, shown, answers, strict=True)):
        ids_B_T[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        for said in range(len(answer)):
            following = [other[said] for other in others if other[:said] == answer[:said]]
            for token in following:
                targets_B_T_V[row, len(prompt) + said - 1, token] += 1 / len(following)
    return ids_B_T, targets_B_T_V


def train(model: Any, tokenizer: PreTrainedTokenizerFast, log: Any = print) -> None:
    """Teach the forms; the loss is the divergence from answering evenly, nats a token."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 50) * (1 - step / STEPS) + 1e-3)
    source = lessons(random.Random(SEED))
    for step in range(STEPS):
        batch = [next(source) for _ in range(BATCH)]
        total = 0.0
        optimiser.zero_grad()
        for part in (batch[::2], batch[1::2]):  # plans are short, drafts are long: apart, less is padded
            ids_B_T, targets_B_T_V = encode(tokenizer, part)
            logprobs_B_T_V = model(input_ids=ids_B_T).logits.log_softmax(-1)
            loss = torch.nn.functional.kl_div(logprobs_B_T_V, targets_B_T_V, reduction="sum") / targets_B_T_V.sum()
            torch.autograd.backward(loss)
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            log(f"step {step + 1}: divergence {total:.4f}")


def main(folder: Path) -> None:
    """Build and save."""
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    train(model, tokenizer)
    print(f"{model.num_parameters():,} parameters")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
