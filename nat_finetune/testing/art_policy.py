"""A policy so small that a test server can train it: one word of a vocabulary in answer to the words of the last user message.

The logit of a word is the sum of its weights over the words that it is asked with; the update is REINFORCE with ART's
advantages. It learns what its trajectories say, so that a message of the wrong role, a wrong token id or a reward that got lost
shows as a run without a gain.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VOCABULARY: tuple[str, ...] = (*"123456789", "yes", "no", "pass")
GAIN = 4000.0
"""A learning rate of a language model, 5e-5, moves this one by 0.2."""

Weights = dict[str, dict[str, float]]


@dataclass(slots=True)
class WordPolicy:
    """Weights by word of the prompt and word of the answer; ids are positions in the vocabulary, the turn's end is one past."""

    vocabulary: tuple[str, ...] = VOCABULARY
    weights: Weights = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The id of the token that ends a turn."""
        return len(self.vocabulary)

    def logprobs(self, messages: Sequence[Mapping[str, Any]]) -> list[float]:
        """Of each word of the vocabulary, nats."""
        rows = [self.weights[word] for word in _words(messages) if word in self.weights]
        logits = [math.fsum(row.get(word, 0.0) for row in rows) for word in self.vocabulary]
        largest = max(logits)
        whole = largest + math.log(math.fsum(math.exp(logit - largest) for logit in logits))
        return [logit - whole for logit in logits]

    def draw(self, logprobs: Sequence[float], temperature: float, seed: str) -> int:
        """A word's id; the best one at temperature 0."""
        if temperature == 0:
            return max(range(len(logprobs)), key=lambda index: logprobs[index])
        shares = [math.exp(value / temperature) for value in logprobs]
        return random.Random(seed).choices(range(len(shares)), shares)[0]

    def learn(self, turns: Sequence[Turn], learning_rate: float, kl: float) -> dict[str, float]:
        """One step on the turns of a group; its metrics."""
        loss, entropy, squares = 0.0, 0.0, 0.0
        changes: Weights = {}
        for turn in turns:
            logprobs = self.logprobs(turn.messages)
            loss -= turn.advantage * logprobs[turn.token] / len(turns)
            entropy -= math.fsum(math.exp(value) * value for value in logprobs) / len(turns)
            for index, word in enumerate(self.vocabulary):
                slope = turn.advantage * ((index == turn.token) - math.exp(logprobs[index]))
                for asked in _words(turn.messages):
                    row = changes.setdefault(asked, {})
                    row[word] = row.get(word, 0.0) + slope
        rate = learning_rate * GAIN
        for asked, row in changes.items():
            kept = self.weights.setdefault(asked, {})
            for word, change in row.items():
                squares += change * change
                kept[word] = kept.get(word, 0.0) * (1.0 - min(rate * kl, 1.0)) + rate * change / len(turns)
        return {"loss": loss, "entropy": entropy, "grad_norm": math.sqrt(squares)}


@dataclass(frozen=True, slots=True)
class Turn:
    """A sampled turn: what it was asked, which word it said, what that earned beside its group."""

    messages: tuple[Mapping[str, Any], ...]
    token: int
    advantage: float


def turns_of(group: Mapping[str, Any], end: int) -> list[Turn]:
    """The sampled turns of a group as it came over the wire, with ART's advantages; none of trajectories at the mean."""
    trajectories = group["trajectories"]
    rewards = [float(trajectory["reward"]) for trajectory in trajectories]
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    turns = []
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        advantage = (reward - mean) / (spread + 1e-6)
        for history in [trajectory, *trajectory["additional_histories"]]:
            turns += _turns(history["messages_and_choices"], advantage, end) if advantage else []
    return turns


def _turns(items: Sequence[Mapping[str, Any]], advantage: float, end: int) -> list[Turn]:
    turns, messages = [], list[Mapping[str, Any]]()
    for item in items:
        if "logprobs" in item:
            ids = [int(token["token"].removeprefix("token_id:")) for token in item["logprobs"]["content"]]
            turns += [Turn(tuple(messages), token, advantage) for token in ids if token < end]
            messages.append(item["message"])
        else:
            messages.append(item)
    return turns


def _words(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    asked = [message for message in messages if message.get("role") == "user"]
    said = str(asked[-1].get("content") or "") if asked else ""
    return ["", *sorted(set(said.split()))]  # the first stands in every prompt: what is learned moves every answer a little
