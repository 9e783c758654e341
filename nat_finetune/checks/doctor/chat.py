"""Does the model's chat template say again what was said, keep tool calls, and end turns as the model does?"""

from __future__ import annotations

from collections.abc import Iterator

from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.config.component import ItemKind
from nat_finetune.errors import BackendError, DataError
from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.prefixes import probe_prefixes
from nat_finetune.types import Message

_ASKED: Message = {"role": "user", "content": "What is an oak?"}
_SAID = "It is a tree."


def chat_findings(chat: ChatFormat, key: str, makes: ItemKind, *, several_turns: bool, tools: bool) -> Iterator[Finding]:
    """What is to say of a template.

    Args:
        chat: The model's format.
        key: Of the model in the config.
        makes: What is trained on: rollouts' own tokens (`group`), or texts that the template encodes.
        several_turns: Whether rollouts have several turns in one conversation.
        tools: Whether the workflow offers tools to the model.
    """
    probe = probe_prefixes(chat)
    for text in probe.warnings:
        if makes == "group":
            say = warning if several_turns else note
            fix = "take a template that keeps earlier turns as they were, or expect to pay for their prompts again"
            yield say("chat.prefix", text, fix, key)
    if tools and probe.tool_call is None:
        message = "the template refuses a conversation with tools, and the workflow offers some"
        yield error("chat.tools", message, "take a model whose template knows tools, or put them into the prompt", key)
    yield from _end(chat, key, makes)


def _end(chat: ChatFormat, key: str, makes: ItemKind) -> Iterator[Finding]:
    """A text that is trained on is encoded by the template: without an end of the turn the model would not learn to stop."""
    from nat_finetune.local.pair_rows import completion_ids

    try:
        completion_ids([_ASKED], _SAID, chat, where="a question and its answer")
    except (BackendError, DataError) as failure:
        say = warning if makes == "group" else error
        fix = "set eos_token (tokenizer_config.json) or eos_token_id (generation_config.json) to what the template writes"
        yield say("chat.end", str(failure), fix, key)
