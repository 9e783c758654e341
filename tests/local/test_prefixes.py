"""The probe says whether a chat template keeps what was sampled, of three turns with a tool's answer between."""

import pytest

from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.prefixes import PrefixProbe, probe_prefixes
from tests.fixtures.models import CHAT_TEMPLATE, tiny_model

SAME = CHAT_TEMPLATE.replace("\n<tool_call>{{", "\n<tool_call>\n{{").replace("}}</tool_call>", "}}\n</tool_call>")
SAME = SAME.replace("%}\n<tool_call>", "%}<tool_call>")
"""Renders a call as the probe's reply has it."""


def probed(template):
    model, tokenizer = tiny_model("llama")
    tokenizer.chat_template = template
    return probe_prefixes(ChatFormat(tokenizer, model))


def test_a_template_that_keeps_everything():
    probe = probed(SAME)
    assert probe == PrefixProbe(plain=True, tool_call=True, whole=True)
    assert probe.warnings == []


def test_a_tool_call_that_is_written_in_another_way_than_it_was_sampled():
    probe = probed(SAME.replace("<tool_call>\n", "<tool_call>"))
    assert (probe.plain, probe.tool_call) == (True, False)
    (said,) = probe.warnings
    assert "a reply that calls a tool" in said


def test_a_template_that_rewrites_replies():
    probe = probed(SAME.replace("{{ message.content }}", "{{ message.content | upper }}"))
    assert probe.plain is False
    assert "a plain reply" in probe.warnings[0]


def test_a_template_that_drops_earlier_turns_later():
    late = SAME.replace(
        "{%- for message in messages %}", "{%- for message in (messages[2:] if messages | length > 4 else messages) %}"
    )
    probe = probed(late)
    assert probe == PrefixProbe(plain=True, tool_call=True, whole=False)
    assert "drops or rewrites earlier turns" in probe.warnings[0]


@pytest.mark.parametrize("role", ["tool", "assistant"])
def test_what_a_template_refuses_is_unknown_and_no_warning(role):
    refusing = f"{{%- for m in messages if m.role == '{role}' %}}{{{{ raise_exception('no') }}}}{{% endfor -%}}" + SAME
    probe = probed(refusing)
    assert probe.tool_call is None
    assert probe.plain is (True if role == "tool" else None)
    assert not [text for text in probe.warnings if "tool" in text]
