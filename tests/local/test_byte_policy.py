"""The policy that stands in for any model: bytes in, bytes out, prefixes kept, no file that runs code."""

from nat_finetune.local.byte_policy import write_byte_policy
from nat_finetune.local.model import load_model


def test_any_text_goes_through(tmp_path):
    tokenizer = load_model(str(write_byte_policy(tmp_path))).tokenizer
    text = "né 日本 \x00 \\ { } \n\n  end"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_template_keeps_prefixes_over_a_tool_round_trip(tmp_path):
    tokenizer = load_model(str(write_byte_policy(tmp_path))).tokenizer
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b", "tool_call_id": "1"},
        {"role": "assistant", "content": "c"},
    ]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    for count in range(1, len(turns)):
        assert whole.startswith(tokenizer.apply_chat_template(turns[:count], tokenize=False))


def test_the_same_seed_gives_the_same_weights(tmp_path):
    digests = [load_model(str(write_byte_policy(tmp_path / str(i), seed=seed))).digest for i, seed in enumerate((3, 3, 4))]
    assert digests[0] == digests[1] != digests[2]
