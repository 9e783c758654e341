"""A prompt that is given, repeated in both completions, or only implied by what both have in common."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from nat_finetune.data.preferences.judgment import Messages, as_completion, as_context, as_messages
from nat_finetune.errors import DataError
from nat_finetune.types import as_messages as normal_form

Context = str | Messages


def without_prompt(prompt: Any, chosen: Any, rejected: Any) -> tuple[Context, Messages, Messages]:
    """(context, chosen, rejected) of a record in TRL's formats: standard or conversational, explicit or implicit prompt.

    Raises:
        DataError: the two sides are of different kinds, or have no prompt in common.
    """
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise DataError("one of 'chosen' and 'rejected' is a text, the other is not")
    if prompt is None:
        if isinstance(chosen, str):
            return _common_text(chosen, rejected)
        return _common_messages(as_messages(chosen, "chosen"), as_messages(rejected, "rejected"))
    context = as_context(prompt, "prompt")
    better, worse = as_completion(chosen, "chosen"), as_completion(rejected, "rejected")
    repeated = normal_form(context)
    size = len(repeated)
    if better[:size] == repeated and worse[:size] == repeated and min(len(better), len(worse)) > size:
        return context, better[size:], worse[size:]
    return context, better, worse


def _common_messages(chosen: Messages, rejected: Messages) -> tuple[Context, Messages, Messages]:
    shorter = min(len(chosen), len(rejected))
    same = sum(1 for _ in takewhile(lambda at: chosen[at] == rejected[at], range(shorter)))
    same = min(same, shorter - 1)  # equal conversations: the last message is the answer, and a pair is refused as identical
    if same == 0:
        raise DataError("there is no prompt, and 'chosen' and 'rejected' don't begin with the same messages")
    return chosen[:same], as_completion(chosen[same:], "chosen"), as_completion(rejected[same:], "rejected")


def _common_text(chosen: str, rejected: str) -> tuple[Context, Messages, Messages]:
    """The prompt ends with the last whole word that both texts have in common; the space after it begins the completions."""
    common = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False)))
    at_gap = chosen[common : common + 1].isspace() and rejected[common : common + 1].isspace()
    whole_words = common if at_gap else next((end for end in range(common, 0, -1) if chosen[end - 1].isspace()), 0)
    prompt = chosen[:whole_words].rstrip()
    if not prompt:
        raise DataError("there is no prompt, and 'chosen' and 'rejected' don't begin with the same words")
    return prompt, as_completion(chosen[len(prompt) :], "chosen"), as_completion(rejected[len(prompt) :], "rejected")
