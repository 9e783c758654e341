"""What a test tells the stand-in to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Message = Mapping[str, Any]
CONFIG = "meta/llama-3.1-8b-instruct@v1.0.0+A100"
BASE_MODEL = "meta/llama-3.1-8b-instruct"
_WAYS = tuple((training, tuning) for training in ("dpo", "sft") for tuning in ("all_weights", "lora", "lora_merged"))


def answer_of(messages: Sequence[Message], trained: bool, draw: Random) -> str:
    """A word of the last message: any of them by the base model, one behind the last colon by a trained one."""
    text = str(messages[-1].get("content") or "")
    words = (text.rpartition(":")[2] if trained else text.replace(":", " ")).split()
    return draw.choice(words or ["nothing"])


@dataclass(frozen=True)
class NemoScript:
    """How the stand-in behaves."""

    statuses: tuple[str, ...] = ("created", "pending", "running", "running", "completed")
    """Of a job: one at each question, the last for ever."""
    reason: str = "CUDA out of memory"
    """What the log of a failed job says."""
    null_progress: bool = False
    """Whether the share done is never told."""
    deployment_statuses: tuple[str, ...] = ("created", "pending", "ready")
    large_from: int = 10 * 2**20
    """Bytes from which a file is uploaded as a large one (LFS)."""
    token: str | None = None
    """Asked for by everything but the data store."""
    hf_token: str | None = None
    """Asked for by the data store."""
    configs: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: {CONFIG: _WAYS})
    """Customization configs with the ways that they train in."""
    answer: Callable[[Sequence[Message], bool, Random], str] = answer_of
    """What a model says: to messages, trained or not, with a generator that the request and its repetition seed."""
    page_size: int = 100
    """Most entries of a page of a list."""
