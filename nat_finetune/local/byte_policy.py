"""A small random policy that reads and writes bytes: it stands in for any model where only the plumbing is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CONTEXT = 1 << 15
"""Tokens, which are bytes; any workflow's prompt should fit."""
_PAD, _EOS, _START = "<pad>", "<end>", "<start>"
_TEMPLATE = """\
{%- if tools %}<start>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<end>{% endif %}
{%- for message in messages %}<start>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}<end>
{%- endfor %}
{%- if add_generation_prompt %}<start>assistant
{% endif -%}
"""


def write_byte_policy(folder: Path, *, seed: int = 0) -> Path:
    """Write a Llama of about 110,000 random weights, with a tokenizer of the 256 bytes and a chat template that keeps prefixes.

    Args:
        folder: made if it is not there.
        seed: of the weights.

    Returns:
        The folder, which `llms.<name>.model` may name.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # for a file of half a megabyte
    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # making a model draws from the global generator
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # norms stay at one
                weight.normal_(0.0, config.initializer_range, generator=generator)
    model.save_pretrained(str(folder), safe_serialization=True)
    tokenizer.save_pretrained(str(folder))
    return folder


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [_PAD, _EOS, _START]
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bytes_only = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_only,
        eos_token=_EOS,
        pad_token=_PAD,
        additional_special_tokens=[_START],
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
