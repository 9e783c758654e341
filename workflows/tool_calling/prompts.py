"""How a request is shown to a model: bare for the shipped policy, with the tools and an example for a language model."""

from __future__ import annotations

import json
from typing import Literal

from nat_finetune_workflows.tool_calling.tools import TOOLS, VALUES, Call

Style = Literal["tiny", "chat"]

EXAMPLE = ("call Ada", Call("call_person", {"person": "Ada"}))
"""A training request with its call, shown to language models."""


def _rules() -> str:
    lines = [f"{name}({', '.join(arguments)})" for name, arguments in TOOLS.items()]
    values = [f"{name}: {', '.join(map(json.dumps, values))}" for name, values in VALUES.items()]
    request, call = EXAMPLE
    return "\n".join(
        [
            "You run a household through tools. Answer each request with one tool call in exactly this form and nothing else:",
            f"{request} -> <call>{call.to_json()}</call>",
            "The tools:",
            *lines,
            "What their arguments can be:",
            *values,
        ]
    )


def messages(request: str, style: Style) -> list[dict[str, str]]:
    """The conversation that asks for a call; it ends with the user's turn."""
    asked = {"role": "user", "content": request}
    return [asked] if style == "tiny" else [{"role": "system", "content": _rules()}, asked]
