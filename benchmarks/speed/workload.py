"""The fixed work that both sides do: deterministic, from random words; no network, and nothing of nat-finetune.

Token counts include the chat template. DPO: 64 pairs, prompts of 80 to 112 tokens, completions of 24 to 40. GRPO: 8 prompts of
56 to 72 tokens, 4 completions each of 32. Agent: 2 prompts of 512 tokens, 8 generations each, four turns of 24 sampled tokens
with an observation after each. Load: 32 conversations of four turns, prompts of 48 to 160 tokens, replies of 8 to 48.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAID = """
agent tool call result search file error retry plan step user order refund ticket policy check status price city weather
flight hotel date time answer question reason because therefore first second then next last the a of to in and is are was
with from by for on at this that which when where how why can must should may open close read write list find update delete
create send receive number value key name id count total sum small large fast slow good bad new old red green blue water
river house garden school book paper music
"""
WORDS = SAID.split()
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = 4
GRPO_GENERATIONS, GRPO_TOKENS = 4, 32
AGENT_GENERATIONS, AGENT_TOKENS = 8, 24
PAIRS, BATCH = 64, 8

Messages = list[dict[str, str]]
Ids = list[int]


def model_folder(name: str, cache: Path) -> Path:
    """The folder of `smollm2` (BENCH_SMOLLM2 names it) or `tiny`, which is made on first use."""
    if name == "smollm2":
        given = os.environ.get("BENCH_SMOLLM2")
        if not given or not (Path(given) / "model.safetensors").is_file():
            raise SystemExit(
                "BENCH_SMOLLM2 must name a folder with SmolLM2-135M-Instruct as safetensors: `make bench` makes one"
            )
        return Path(given)
    folder = cache / name
    if not (folder / "model.safetensors").is_file():
        build_tiny(folder)
    return folder


def work_for(folder: Path, cache: Path) -> Path:
    """The file with the work of a model, written on first use."""
    path = cache / f"work-{folder.name}.json"
    if not path.is_file():
        from transformers import AutoTokenizer

        cache.mkdir(parents=True, exist_ok=True)
        made = make_work(AutoTokenizer.from_pretrained(folder))
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(made))
        temporary.replace(path)
    return path


def make_work(tokenizer: Any) -> dict[str, Any]:
    """Messages and token ids of everything."""
    rng, agent, load = random.Random(1), random.Random(2), random.Random(3)
    dpo = [_pair(tokenizer, rng) for _ in range(PAIRS)]
    grpo = [_named(_prompt(tokenizer, rng, 56, 72)) for _ in range(8)]
    return {
        "dpo": dpo,
        "grpo": grpo,
        "agent": [
            {**_named(_prompt(tokenizer, agent, 512, 512)), "observations": [_said(agent, 12) for _ in range(TURNS - 1)]}
            for _ in range(2)
        ],
        "load": [
            {
                **_named(_prompt(tokenizer, load, 48, 160)),
                "observations": [_said(load, load.randint(4, 24)) for _ in range(TURNS - 1)],
                "tokens": [load.randint(8, 48) for _ in range(TURNS)],
            }
            for _ in range(32)
        ],
    }


def reward_of(text: str) -> float:
    """A deterministic reward in [0, 1) that costs nothing."""
    return (sum(ord(c) * (i % 7 + 1) for i, c in enumerate(text)) % 997) / 997.0


def render(tokenizer: Any, messages: Messages, *, prompt: bool) -> Ids:
    """Token ids of a conversation, with the beginning of the assistant's turn where it is a prompt."""
    made = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=True, return_dict=True)
    return list(made["input_ids"])


def _said(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _named(made: tuple[Messages, Ids]) -> dict[str, Any]:
    return {"prompt": made[0], "prompt_ids": made[1]}


def _longest(rng: random.Random, target: int, shown: Callable[[str], tuple[Messages, Ids]]) -> tuple[Messages, Ids]:
    """Random words, as many as fit into `target` tokens."""
    words = [rng.choice(WORDS) for _ in range(target + 8)]
    best = shown(words[0])
    for count in range(2, len(words)):
        longer = shown(" ".join(words[:count]))
        if len(longer[1]) > target:
            return best
        best = longer
    return best


def _prompt(tokenizer: Any, rng: random.Random, low: int, high: int) -> tuple[Messages, Ids]:
    def shown(text: str) -> tuple[Messages, Ids]:
        messages = [{"role": "user", "content": text}]
        return messages, render(tokenizer, messages, prompt=True)

    return _longest(rng, rng.randint(low, high), shown)


def _completion(tokenizer: Any, rng: random.Random, prompt: Messages, prompt_ids: Ids) -> tuple[Messages, Ids]:
    def shown(text: str) -> tuple[Messages, Ids]:
        messages = [{"role": "assistant", "content": text}]
        return messages, render(tokenizer, prompt + messages, prompt=False)[len(prompt_ids) :]

    return _longest(rng, rng.randint(24, 40), shown)


def _pair(tokenizer: Any, rng: random.Random) -> dict[str, Any]:
    prompt, prompt_ids = _prompt(tokenizer, rng, 80, 112)
    chosen, chosen_ids = _completion(tokenizer, rng, prompt, prompt_ids)
    rejected, rejected_ids = _completion(tokenizer, rng, prompt, prompt_ids)
    ids = {"prompt_ids": prompt_ids, "chosen_ids": chosen_ids, "rejected_ids": rejected_ids}
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **ids}


def save_tokenizer(folder: Path) -> None:
    """A byte-pair tokenizer of 1,024 tokens, trained on the words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(0)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    corpus = [" ".join(rng.choice(WORDS) for _ in range(60)) for _ in range(400)] + ["system\n", "user\n", "assistant\n"] * 50
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=1024, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **ends)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)


def build_tiny(folder: Path) -> None:
    """A Llama with random weights: hidden 256, 6 layers, 8 heads, vocabulary 1,024."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 8}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = LlamaConfig(
        vocab_size=1024, num_key_value_heads=8, max_position_embeddings=2048, tie_word_embeddings=False, **shape, **ids
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    save_tokenizer(folder)
    model.save_pretrained(folder)
