"""One fixed request whose answer tells which model answers: NAT's example trained for hours while the base model was sampled.

It is asked greedily, with the alternatives of each token. The same model gives the same answer, but for the rounding of a
server that batches; after an update the logprobs must have moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nat_finetune_plugins.openpipe_art.wire import Inference

from nat_finetune.errors import AgreementError, BackendError

PROMPT = "Count from one to twenty."
TOKENS, ALTERNATIVES = 16, 5


@dataclass(frozen=True, slots=True)
class Answer:
    """Per token: the one that was said, and the logprobs of it and its alternatives, nats."""

    tokens: tuple[str, ...]
    logprobs: tuple[Mapping[str, float], ...]


async def ask(inference: Inference, name: str) -> Answer:
    """The answer of the model that is served as `name`.

    Raises:
        BackendError: another model answered, or one without logprobs.
        ServiceError: no model of that name is served.
    """
    body = {
        "model": name,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": ALTERNATIVES,
    }
    found = await inference.chat(body)
    answered = found.get("model") if isinstance(found, Mapping) else None
    if answered != name:
        raise BackendError(f"the canary: asked for {name!r}, {answered!r} answered")
    try:
        content = found["choices"][0]["logprobs"]["content"]
        said = tuple(str(token["token"]) for token in content)
        return Answer(said, tuple(_alternatives(token) for token in content))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BackendError(f"the canary: {name!r} answered without logprobs, which ART trains on ({error!r})") from error


def distance(one: Answer, other: Answer) -> float:
    """The largest difference of the logprobs of a token that both know, nats, up to where they first said different things."""
    largest = 0.0
    for said, other_said, known, other_known in zip(one.tokens, other.tokens, one.logprobs, other.logprobs, strict=False):
        common = known.keys() & other_known.keys()
        largest = max([largest, *(abs(known[token] - other_known[token]) for token in common)])
        if said != other_said:
            break
    return largest


def require_moved(before: Answer, after: Answer, name: str) -> float:
    """How far an update moved the answer, nats.

    Raises:
        AgreementError: not at all: what is served is what was served before.
    """
    if before == after:
        raise AgreementError(
            f"the canary: after the update {name!r} answers exactly as the step before: what is served is not what was "
            "trained, or the learning rate is too small to be seen in 16 tokens and their alternatives (training.learning_rate)"
        )
    return distance(before, after)


def _alternatives(token: Mapping[str, Any]) -> dict[str, float]:
    others = {str(entry["token"]): float(entry["logprob"]) for entry in token.get("top_logprobs") or []}
    return {**others, str(token["token"]): float(token["logprob"])}
