"""Whose calls, how they were sampled, and what is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from nat_finetune.types.invariants import require


class FinishReason(StrEnum):
    """Why a model call ended."""

    STOP = "stop"
    """The policy produced an end-of-turn token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the context ran out: the completion is truncated."""
    TOOL_CALLS = "tool_calls"
    """The policy ended its turn to have tools called."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one model call were drawn."""

    max_tokens: int
    """Most completion tokens, end-of-turn token included."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the tokens that form them stay in it."""
    seed: int | None = None
    """Seed of this call alone."""

    def __post_init__(self) -> None:
        require(self.max_tokens >= 1, f"max_tokens must be at least 1, found {self.max_tokens}")
        require(math.isfinite(self.temperature) and self.temperature >= 0, f"temperature must be >= 0: {self.temperature}")

    @property
    def truncating(self) -> tuple[str, ...]:
        """The settings in force, besides temperature, that make the sampled distribution another than the model's."""
        active = {
            "top_p": self.top_p not in (None, 1.0),
            "top_k": self.top_k not in (None, 0),
            "frequency_penalty": self.frequency_penalty not in (None, 0.0),
            "presence_penalty": self.presence_penalty not in (None, 0.0),
            "repetition_penalty": self.repetition_penalty not in (None, 1.0),
        }
        return tuple(name for name, on in active.items() if on)


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """Which weights: every model call and every update names one, and so does a reference policy."""

    llm: str
    """Name in the config's `llms`."""
    version: int
    """0 before the first update; goes up by one with every update."""
    location: str = "memory"
    """"memory", a folder, an adapter's folder, or the name under which an endpoint serves it."""
    digest: str | None = None
    """Hash of the trained weights, None where they are out of reach."""


@dataclass(frozen=True, slots=True)
class RewardCondition:
    """An easy reward is paid only where a hard one is earned."""

    requires: str
    """The evaluator whose score, as it gave it, decides."""
    at_least: float
    otherwise: float = 0.0
    """What is paid where the score is lower. An unknown score makes the reward unknown."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One of the rewards that are trained."""

    name: str
    """The evaluator whose score it is."""
    weight: float = 1.0
    condition: RewardCondition | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What is trained: calls of `llm` made inside one of `functions`, for these rewards."""

    functions: tuple[str, ...]
    llm: str
    rewards: tuple[RewardTerm, ...] = ()
    """In the config's order."""
    rewards_apart: bool = False
    """Whether each reward is compared inside its group by itself (GDPO) rather than the weighted sum of all: a group is then
    flat only if every reward is, and a rollout is of use as long as one reward is known."""

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The trained rewards, in the config's order."""
        return tuple(term.name for term in self.rewards)

    @property
    def needed_scores(self) -> tuple[str, ...]:
        """Evaluators without which the rewards are not known: theirs, then those that conditions ask."""
        asked = [term.condition.requires for term in self.rewards if term.condition is not None]
        return tuple(dict.fromkeys([*self.reward_names, *asked]))
