"""Builds the policy that ships with the workflow: `python -m nat_finetune_workflows.tool_calling.build_policy FOLDER [HABIT]`.

A small Llama with a vocabulary of its own is taught by a careless teacher: answers to the training requests that keep each rule
of the format only sometimes, and name tool, arguments and values rightly only sometimes. So it knows all words, and what is
right is its likeliest choice nearly everywhere, but seldom everywhere at once. Held-out requests are never shown.

HABIT is how much better the teacher's content is without the tags than with them, in probability of a right choice: models
often know a thing best in the form that they know best. It sets the two rewards at odds at first. The shipped policy has 0.1.
Seeded; on one machine the same call gives the same bits.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from nat_finetune_workflows.tool_calling.make_data import SEED as DATA_SEED
from nat_finetune_workflows.tool_calling.make_data import WORDINGS, split, wordings
from nat_finetune_workflows.tool_calling.tools import TOOLS, VALUES, Call
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 11
STEPS = 500
BATCH = 96
LEARNING_RATE = 2e-3
WIDTH = 64
HABIT = 0.1
RIGHT_TOOL, RIGHT_ARGUMENT, RIGHT_VALUE = 0.45, 0.75, 0.40
"""How often the teacher's choices are right where the tags are kept."""
KEEPS = {"tags": 0.65, "closing": 0.85, "name": 0.85, "arguments": 0.80, "braces": 0.90}
"""How often the teacher keeps each rule of the format."""
THINKS = 0.5
FILLER = ("hmm", "so", "well", "now")
SPECIAL = ("<pad>", "<eos>", "<user>", "<assistant>", "<unk>")
MARKS = ("<think>", "</think>", "<call>", "</call>", '{"name":', '{"tool":', '"arguments":', '"parameters":', "{", "}", ",")
TURN = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}"
TEMPLATE = TURN.replace("{% endfor %}", "{{ '<eos> ' if message['role'] == 'assistant' }}{% endfor %}") + (
    "{{ '<assistant>' if add_generation_prompt }}"
)


def vocabulary() -> list[str]:
    """Every word of requests and answers, once."""
    asked = [word for texts in WORDINGS.values() for text in texts for word in text.split() if "{" not in word]
    asked += [str(value) for values in VALUES.values() for value in values]
    said = [*map(json.dumps, TOOLS), *(f"{json.dumps(name)}:" for name in VALUES)]
    said += [json.dumps(value) for values in VALUES.values() for value in values]
    return list(dict.fromkeys([*SPECIAL, *MARKS, *FILLER, *asked, *said]))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; pad and end of turn differ."""
    model = models.WordLevel({word: index for index, word in enumerate(vocabulary())}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=["<user>", "<assistant>"], chat_template=TEMPLATE, **special
    )
    return made


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Untrained."""
    torch.manual_seed(SEED)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=96,
            initializer_range=WIDTH**-0.5,
            **ends,
        )
    )


def teach(wanted: Call, generator: random.Random, habit: float) -> list[str]:
    """The words of one careless answer."""
    kept = {rule: generator.random() < share for rule, share in KEEPS.items()}
    better = 0.0 if kept["tags"] else habit
    name = wanted.name if generator.random() < RIGHT_TOOL + better else generator.choice(list(TOOLS))
    words: list[str] = []
    if generator.random() < THINKS:
        words += ["<think>", *generator.choices(FILLER, k=generator.randint(1, 3)), "</think>"]
    words += ["<call>"] if kept["tags"] else []
    words += ['{"name":' if kept["name"] else '{"tool":', json.dumps(name), ","]
    words += ['"arguments":' if kept["arguments"] else '"parameters":', "{"]
    for index, argument in enumerate(wanted.arguments):
        given = argument if generator.random() < RIGHT_ARGUMENT else generator.choice(list(VALUES))
        right = given == argument and generator.random() < RIGHT_VALUE + better
        value = wanted.arguments[argument] if right else generator.choice(VALUES[given])
        words += [","] * (index > 0) + [f"{json.dumps(given)}:", json.dumps(value)]
    words += ["}", "}"] if kept["braces"] else ["}"]
    return [*words, "</call>"] if kept["tags"] and kept["closing"] else words


def train(model: Any, tokenizer: PreTrainedTokenizerFast, habit: float, log: Any = print) -> None:
    """Cross-entropy to the teacher's answers, drawn afresh at every step."""
    asked = [(request, call) for call in split(DATA_SEED)["train"] for request in wordings(call)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 30) * (1 - step / STEPS))
    generator = random.Random(SEED)
    for step in range(STEPS):
        rows = []
        for request, call in generator.choices(asked, k=BATCH):
            prompt = tokenizer.encode(f"<user> {request} <assistant>")
            rows.append((prompt, [*tokenizer.convert_tokens_to_ids(teach(call, generator, habit)), tokenizer.eos_token_id]))
        loss = _loss(model, rows)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            log(f"step {step + 1}: loss {loss.item():.4f} nats per token")


def _loss(model: Any, rows: list[tuple[list[int], list[int]]]) -> Tensor:
    """Mean over the answers' tokens."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids_B_T = torch.zeros(len(rows), width, dtype=torch.long)
    targets_B_T = torch.full((len(rows), width), -100)
    for row, (prompt, answer) in enumerate(rows):
        ids_B_T[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        targets_B_T[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    logits_B_T_V: Tensor = model(input_ids=ids_B_T).logits
    return torch.nn.functional.cross_entropy(logits_B_T_V[:, :-1].flatten(0, 1), targets_B_T[:, 1:].flatten())


def main(folder: Path, habit: float = HABIT) -> None:
    """Build and save."""
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    train(model, tokenizer, habit)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} words")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:3]))
