"""The file formats: which records look like which, and what they say.

TRL: https://huggingface.co/docs/trl/dataset_formats; NeMo RL: its `PreferenceDataset`; OpenAI: the preference format of its
fine-tuning API; NeMo Customizer: the records of its DPO dataset; scored lists: those of UltraFeedback and its descendants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nat_finetune.data.preferences.judgment import (
    Answer,
    Judgment,
    as_completion,
    as_context,
    as_messages,
    column,
    items,
    number,
    preferred,
    rest,
)
from nat_finetune.data.preferences.prompts import without_prompt
from nat_finetune.errors import DataError

Values = Mapping[str, Any]

CONTEXTS = ("prompt", "instruction", "context", "input", "question")
LISTS = ("completions", "responses", "generations", "candidates")
SCORES = ("scores", "ratings", "rewards")
TEXTS = ("response", "completion", "text", "output", "content", "generation")
SCORE = ("score", "overall_score", "rating", "reward")


@dataclass(frozen=True, slots=True)
class Format:
    """One file format."""

    name: str
    signature: str
    """What its records have, for messages."""
    matches: Callable[[Values], bool]
    read: Callable[[Values], Judgment]
    """Raises DataError with the reason where a record does not keep to the format."""


def _nemo_rl(values: Values) -> Judgment:
    context = as_context(column(values, "context"), "context")
    answers = []
    for index, entry in enumerate(items(column(values, "completions"), "completions", least=2)):
        where = f"completion {index + 1}"
        if not isinstance(entry, Mapping) or "rank" not in entry or "completion" not in entry:
            raise DataError(f"{where} of 'completions' is not an object with rank and completion")
        rank = number(entry["rank"], f"the rank of {where}")
        answers.append(Answer(as_completion(entry["completion"], where), -rank, index))
    return Judgment(context, tuple(answers), ranked=True, extra=rest(values, "context", "completions"))


def _trl(values: Values) -> Judgment:
    chosen, rejected = column(values, "chosen"), column(values, "rejected")
    prompt = values.get("prompt")
    context, better, worse = without_prompt(prompt, chosen, rejected)
    scores = (values.get("score_chosen"), values.get("score_rejected"))
    extra = rest(values, "prompt", "chosen", "rejected", "score_chosen", "score_rejected")
    if scores == (None, None):
        return preferred(context, better, worse, extra)
    high, low = number(scores[0], "'score_chosen'"), number(scores[1], "'score_rejected'")
    if high < low:
        raise DataError(f"the chosen side scores {high}, less than the rejected one's {low}")
    return Judgment(context, (Answer(better, high, 0), Answer(worse, low, 1)), ranked=False, extra=extra)


def _openai(values: Values) -> Judgment:
    given = column(values, "input")
    if not isinstance(given, Mapping) or "messages" not in given:
        raise DataError("'input' is not an object with messages")
    if given.get("tools"):
        raise DataError("'input.tools' are not passed on to a chat template: write them into the system message")
    context = as_messages(given["messages"], "input.messages")
    better = as_completion(column(values, "preferred_output"), "preferred_output")
    worse = as_completion(column(values, "non_preferred_output"), "non_preferred_output")
    return preferred(context, better, worse, rest(values, "input", "preferred_output", "non_preferred_output"))


def _nemo_customizer(values: Values) -> Judgment:
    context = as_context(column(values, "prompt"), "prompt")
    better = as_completion(column(values, "chosen_response"), "chosen_response")
    worse = as_completion(column(values, "rejected_response"), "rejected_response")
    return preferred(context, better, worse, rest(values, "prompt", "chosen_response", "rejected_response"))


def _scored(values: Values) -> Judgment:
    prompt = _one_of(values, CONTEXTS, "a context")
    name = _one_of(values, LISTS, "a list of completions")
    entries = items(values[name], name, least=2)
    beside = next((score for score in SCORES if isinstance(values.get(score), list)), None)
    if beside is not None:
        scores = values[beside]
        if len(scores) != len(entries):
            raise DataError(f"{name!r} has {len(entries)} entries, {beside!r} {len(scores)}")
        found = [(entry, score) for entry, score in zip(entries, scores, strict=True)]
    else:
        found = [_scored_entry(entry, f"entry {index + 1} of {name!r}") for index, entry in enumerate(entries)]
    answers = [Answer(as_completion(e, f"entry {i + 1} of {name}"), score, i) for i, (e, score) in enumerate(found)]
    extra = rest(values, prompt, name, beside or name)
    return Judgment(as_context(values[prompt], prompt), tuple(answers), ranked=False, extra=extra)


def _scored_entry(entry: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(entry, Mapping):
        raise DataError(f"{where} has no score")
    text = next((entry[name] for name in TEXTS if entry.get(name) is not None), None)
    if text is None:
        raise DataError(f"{where} has no text; expected one of {', '.join(TEXTS)}, found {', '.join(entry) or 'nothing'}")
    names = [name for name in SCORE if name in entry]
    if not names:
        raise DataError(f"{where} has no score; expected one of {', '.join(SCORE)}, found {', '.join(entry)}")
    return text, entry[names[0]]


def _one_of(values: Values, names: tuple[str, ...], what: str) -> str:
    found = [name for name in names if values.get(name) is not None]
    if not found:
        raise DataError(f"there is no column with {what}; expected one of {', '.join(names)}, found {', '.join(values)}")
    return found[0]


def _entries(values: Values, *names: str) -> list[Mapping[str, Any]]:
    """The objects of the list columns of these names."""
    lists = [values[name] for name in names if isinstance(values.get(name), list)]
    return [entry for found in lists for entry in found if isinstance(entry, Mapping)]


def _is_nemo_rl(values: Values) -> bool:
    return "context" in values and any("rank" in entry for entry in _entries(values, "completions"))


def _is_scored(values: Values) -> bool:
    has_list = any(isinstance(values.get(name), list) for name in LISTS)
    beside = any(isinstance(values.get(name), list) for name in SCORES)
    return has_list and (beside or any(name in entry for entry in _entries(values, *LISTS) for name in SCORE))


def _has(*names: str) -> Callable[[Values], bool]:
    return lambda values: all(name in values for name in names)


FORMATS = (
    Format("nemo-rl", "context and completions with rank and completion", _is_nemo_rl, _nemo_rl),
    Format("trl", "chosen and rejected, with or without prompt", _has("chosen", "rejected"), _trl),
    Format(
        "openai",
        "input.messages, preferred_output and non_preferred_output",
        _has("preferred_output", "non_preferred_output"),
        _openai,
    ),
    Format("scored", "a context and a list of completions with scores", _is_scored, _scored),
    Format(
        "nemo-customizer",
        "prompt, chosen_response and rejected_response",
        _has("chosen_response", "rejected_response"),
        _nemo_customizer,
    ),
)
