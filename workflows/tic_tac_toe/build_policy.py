"""Builds the policy that ships with the workflow: `python -m nat_finetune_workflows.tic_tac_toe.build_policy FOLDER`.

A small Llama with a vocabulary of its own learns to answer with any legal move, each as likely as another, from positions of
random play. It knows the format and nothing of the game: what training adds is measured from there. Seeded; on one machine
the same call gives the same bits.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch
from nat_finetune_workflows.tic_tac_toe.game import is_over, legal_moves, positions
from nat_finetune_workflows.tic_tac_toe.prompts import messages
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 7
STEPS = 600
BATCH = 512
LEARNING_RATE = 2e-3
ENOUGH_LEGAL = 0.97
"""Training stops when this share of the probability is on legal moves: a policy that is always legal would hide a lesson."""
INITIAL_SPREAD = 0.08
"""Near 1 / sqrt(width); the usual 0.02 is meant for wider models."""
WORDS = [
    "<pad>",
    "<eos>",
    "<user>",
    "<assistant>",
    "<unk>",
    *(f"{mark}{number}" for mark in ("", "+", "-") for number in range(1, 10)),
]
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} "
    "{% if message['role'] == 'assistant' %}<eos> {% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; pad and end of turn differ."""
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Untrained."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=INITIAL_SPREAD,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(model: Any, tokenizer: PreTrainedTokenizerFast, log: Any = print) -> float:
    """Teach uniform legal play; returns the share of the probability that is on legal moves."""
    boards = [board for board in positions() if not is_over(board)]
    prompts_N_T = torch.tensor(
        [
            tokenizer.apply_chat_template(messages(board, "tiny"), add_generation_prompt=True, return_dict=True)["input_ids"]
            for board in boards
        ]
    )
    first = WORDS.index("1")
    targets_N_V = torch.zeros(len(boards), len(WORDS))
    for row, board in enumerate(boards):
        for square in legal_moves(board):
            targets_N_V[row, first + square] = 1.0 / len(legal_moves(board))
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 30) * (1 - step / STEPS) + 1e-3)
    generator = random.Random(SEED)
    share = 0.0
    for step in range(STEPS):
        rows = torch.tensor(generator.choices(range(len(boards)), k=BATCH))
        answers = torch.multinomial(targets_N_V[rows], 1, generator=torch.Generator().manual_seed(step))
        loss = _loss(model, prompts_N_T[rows], targets_N_V[rows], answers)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if step % 20 == 19:
            share = legal_share(model, prompts_N_T, targets_N_V)
            log(f"step {step + 1}: loss {loss.item():.4f}, legal {share:.4f}")
            if share >= ENOUGH_LEGAL:
                break
    return share


def _loss(model: Any, prompts_B_T: Tensor, targets_B_V: Tensor, answers_B_1: Tensor) -> Tensor:
    """Cross-entropy to uniform legal play at the answer, and to the end of the turn after it."""
    logits_B_T_V: Tensor = model(input_ids=torch.cat([prompts_B_T, answers_B_1], dim=1)).logits
    move = -(targets_B_V * logits_B_T_V[:, -2].log_softmax(-1)).sum(-1).mean()
    end = -logits_B_T_V[:, -1].log_softmax(-1)[:, WORDS.index("<eos>")].mean()
    return move + end


@torch.no_grad()
def legal_share(model: Any, prompts_N_T: Tensor, targets_N_V: Tensor) -> float:
    """Mean probability of a legal move over all positions."""
    probs_N_V = model(input_ids=prompts_N_T, logits_to_keep=1).logits[:, -1].softmax(-1)
    return float((probs_N_V * (targets_N_V > 0)).sum(-1).mean())


def main(folder: Path) -> None:
    """Build and save."""
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    share = train(model, tokenizer)
    print(f"{model.num_parameters():,} parameters, {share:.4f} of the probability is on legal moves")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
