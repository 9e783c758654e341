"""One trainable item to one row of another trainer's file.

TRL: https://huggingface.co/docs/trl/dataset_formats; NeMo RL: its `PreferenceDataset`; OpenAI: the preference and chat formats
of its fine-tuning API; NeMo Customizer: the records of its DPO dataset, and its conversations; ShareGPT: what LLaMA-Factory
reads.

All rows of a file have one schema, for loaders take the first rows' for all. Only what is said is written: a message that calls
tools, or answers such a call, is a message in OpenAI's format alone, and an error in the others, whose templates would show
something else than the policy saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json, to_json

from nat_finetune.data.splits import Side
from nat_finetune.errors import DataError
from nat_finetune.types import Message

ExportFormat = Literal["nemo-rl", "trl", "openai", "nemo-customizer", "sharegpt"]
ExportKind = Literal["pairs", "demonstrations", "rollouts"]
Row = dict[str, Any]

TAKES: Mapping[ExportKind, tuple[ExportFormat, ...]] = {
    "pairs": ("nemo-rl", "trl", "openai", "nemo-customizer", "sharegpt"),
    "demonstrations": ("trl", "openai", "nemo-customizer", "sharegpt"),
    "rollouts": ("trl",),
}
"""Which formats hold which items."""
_SAYS = {"role", "content"}
_CALLS = {"role", "content", "name", "tool_calls", "tool_call_id"}
_SHAREGPT = {"system": "system", "user": "human", "assistant": "gpt"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What any item comes to: a context, one completion or two, and what they are worth."""

    context: Sequence[Message]
    completion: Message
    """The chosen one of a pair."""
    rejected: Message | None = None
    context_text: str | None = None
    """The text, where the context came as one."""
    scores: tuple[float, float] | None = None
    """Of chosen and rejected."""
    reward: float | None = None
    """The weighted sum of `rewards`."""
    rewards: Mapping[str, float | None] | None = None
    """Of the rollout that the completion is of."""


class RowWriter:
    """Rows of one file format as JSON lines, one at a time; what they have in common is known at the end."""

    def __init__(self, form: ExportFormat, kind: ExportKind, *, task_name: str | None = None) -> None:
        self._form = form
        self._kind = kind
        self._task_name = task_name
        self._only_texts = True
        self._all_scored = True

    def line(self, item: Exported) -> bytes:
        """The item as a line without its end; to be `finished` once all are made.

        Raises:
            DataError: the format can't hold it; says why.
        """
        context = _messages(item.context, self._form, "the context")
        _check_context(context)
        row = self._pair(item, context) if self._kind == "pairs" else self._single(item, context)
        self._only_texts &= item.context_text is not None
        self._all_scored &= item.scores is not None
        return to_json(row)

    def finished(self, line: bytes) -> bytes:
        """The line with the columns that all rows have, and no others."""
        if self._kind != "pairs":
            return line
        if self._form == "nemo-customizer" and self._only_texts:
            row = from_json(line)
            return to_json({**row, "prompt": row["prompt"][0]["content"]})
        if self._form == "trl" and not self._all_scored:
            return to_json({name: value for name, value in from_json(line).items() if not name.startswith("score_")})
        return line

    def _pair(self, item: Exported, context: list[Row]) -> Row:
        better = _completion(item.completion, self._form)
        worse = _completion(item.rejected or {}, self._form)
        if self._form == "nemo-rl":
            ranked = [{"rank": rank, "completion": [said]} for rank, said in enumerate((better, worse))]
            named = {} if self._task_name is None else {"task_name": self._task_name}
            return {"context": context, "completions": ranked, **named}
        if self._form == "trl":
            scores = {} if item.scores is None else dict(zip(("score_chosen", "score_rejected"), item.scores, strict=True))
            return {"prompt": context, "chosen": [better], "rejected": [worse], **scores}
        if self._form == "openai":
            return {"input": {"messages": context}, "preferred_output": [better], "non_preferred_output": [worse]}
        if self._form == "nemo-customizer":
            return {"prompt": context, "chosen_response": better["content"], "rejected_response": worse["content"]}
        chosen, rejected = ({"from": "gpt", "value": said["content"]} for said in (better, worse))
        return {"conversations": _conversation(context), "chosen": chosen, "rejected": rejected}

    def _single(self, item: Exported, context: list[Row]) -> Row:
        said = _completion(item.completion, self._form)
        if self._form in ("openai", "nemo-customizer"):
            return {"messages": [*context, said]}
        if self._form == "sharegpt":
            return {"conversations": [*_conversation(context), {"from": "gpt", "value": said["content"]}]}
        rewards = {} if item.rewards is None else {"reward": item.reward, "rewards": dict(item.rewards)}
        return {"prompt": context, "completion": [said], **rewards}


def file_names(form: ExportFormat) -> tuple[str, str]:
    """Where the training and the validation file are, below the folder; NeMo Customizer's are those of its data store."""
    if form == "nemo-customizer":
        return "training/training_file.jsonl", "validation/validation_file.jsonl"
    return "train.jsonl", "validation.jsonl"


def dataset_info(kind: ExportKind, files: Mapping[Side, str]) -> Row:
    """What LLaMA-Factory's `dataset_info.json` says of ShareGPT files, by side."""
    pairs = {"chosen": "chosen", "rejected": "rejected"} if kind == "pairs" else {}
    columns = {"messages": "conversations", **pairs}
    ranking = {"ranking": True} if kind == "pairs" else {}
    return {side: {"file_name": name, "formatting": "sharegpt", **ranking, "columns": columns} for side, name in files.items()}


def _completion(message: Message, form: ExportFormat) -> Row:
    (said,) = _messages([message], form, "the completion")
    if said["role"] != "assistant":
        raise DataError(f"the completion is a message of {said['role']!r}, expected 'assistant'")
    return said


def _messages(given: Sequence[Message], form: ExportFormat, what: str) -> list[Row]:
    return [_message(message, form, f"message {place} of {what}") for place, message in enumerate(given, start=1)]


def _message(message: Message, form: ExportFormat, where: str) -> Row:
    """What a message says, in the form's own fields.

    Raises:
        DataError: it says more than the format holds.
    """
    found = {key: value for key, value in message.items() if value is not None}
    role, content = found.get("role"), found.get("content")
    known = _CALLS if form == "openai" else _SAYS
    more = sorted(found.keys() - known)
    if more:
        raise DataError(f"{where} has {', '.join(more)}, which {form} files do not hold")
    if role not in _SHAREGPT and not (form == "openai" and role in ("tool", "developer")):
        raise DataError(f"{where} is of {role!r}, which {form} files do not hold")
    if isinstance(content, list | tuple):
        content = "".join(_part(part, form, where) for part in content)
    if content is None and "tool_calls" in found:
        return found
    if not isinstance(content, str):
        raise DataError(f"{where} holds no text")
    return {"role": role, "content": content, **{key: found[key] for key in sorted(found.keys() - _SAYS)}}


def _part(part: Any, form: ExportFormat, where: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise DataError(f"{where} holds a content part {kind!r}; {form} files hold texts")


def _check_context(context: Sequence[Row]) -> None:
    if not context:
        raise DataError("the context is empty: there is nothing to answer")
    if context[-1]["role"] == "assistant":
        raise DataError("the context ends with the assistant: a trainer would go on with that message, not answer it")


def _conversation(context: Sequence[Row]) -> list[Row]:
    """The context in ShareGPT's names.

    Raises:
        DataError: behind the system message, user and assistant do not take turns: the reader would leave the row out.
    """
    turns = context[1:] if context[0]["role"] == "system" else context
    if [turn["role"] for turn in turns] != ["user" if place % 2 == 0 else "assistant" for place in range(len(turns))]:
        raise DataError("user and assistant do not take turns in the context, as sharegpt files must")
    if not turns or turns[-1]["role"] != "user":
        raise DataError("the context does not end with the user, as in sharegpt files it must")
    return [{"from": _SHAREGPT[message["role"]], "value": message["content"]} for message in context]
