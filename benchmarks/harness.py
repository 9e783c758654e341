"""What the harness itself costs: recording a model call, an event, a rollout, and writing them down.

    python benchmarks/harness.py [--repeat 5] [--output harness.json] [--results RESULTS.md]

CPU time of one core, medians of several rounds. A model call is recorded from when the workflow asks until it has the reply,
less what the model itself takes (here nothing); "kept" is what its line of `events.jsonl` takes on top.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from speed.results import put

from nat_finetune.interfaces import ChatReply
from nat_finetune.rollout_service import RolloutService, RolloutSettings, requests_for
from nat_finetune.runstore import RunStore
from nat_finetune.tracing import record
from nat_finetune.tracing.context import recording
from nat_finetune.tracing.recorder import Recorder
from nat_finetune.tracing.traced import TracedChatModel, TracedFunction
from nat_finetune.types import Example, FinishReason, PolicyRef, Rollout, SamplingParams, Score

CALLS, CALL_BOUND, EVENT_BOUND = 500, 300.0, 50.0
"""Calls of a round; microseconds that a model call and any other event may take."""


class Instant:
    """A chat model that answers at once, with token ids."""

    name = "policy"

    def __init__(self, prompt: int, sampled: int) -> None:
        self._reply = ChatReply(
            message={"role": "assistant", "content": "x" * 4 * sampled},
            finish_reason=FinishReason.STOP,
            sampling=SamplingParams(max_tokens=sampled, seed=1),
            policy=PolicyRef("policy", 3, "0" * 32),
            prompt_ids=tuple(range(prompt)),
            completion_ids=tuple(range(sampled)),
            logprobs=tuple(-0.1 * place for place in range(sampled)),
        )

    async def chat(self, messages: Any, **settings: Any) -> ChatReply:
        """The reply."""
        return self._reply


def conversation(messages: int, words: int) -> list[dict[str, str]]:
    """So many messages of so many words."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": "word " * words} for place in range(messages)]


async def model_calls(messages: int, prompt: int, sampled: int) -> tuple[float, float]:
    """Microseconds of a call that recording takes, and those that keeping it takes."""
    inner = Instant(prompt, sampled)
    traced, said = TracedChatModel(inner, seeded=True), conversation(messages, prompt // messages)

    async def ask(model: Any) -> float:
        began = time.process_time()
        for _ in range(CALLS):
            await model.chat(said, max_tokens=sampled)
        return time.process_time() - began

    bare = await ask(inner)
    recorder = Recorder("step00000-00000-000", 7)
    with recording(recorder):
        recorded = await ask(traced)
    return (recorded - bare) / CALLS * 1e6, kept(recorder) / CALLS * 1e6


def kept(recorder: Recorder) -> float:
    """Seconds that writing the events down takes."""
    rollout = Rollout(recorder.rollout_id, 1, 0, 7, recorder.events, None, {"reward": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder))
        began = time.process_time()
        store.add_rollout(0, rollout)
        return time.process_time() - began


def events(say: Callable[[int], None]) -> float:
    """Microseconds of an event that a workflow records."""
    recorder = Recorder("step00000-00000-000", 7)
    with recording(recorder):
        began = time.process_time()
        for number in range(CALLS):
            say(number)
        return (time.process_time() - began) / CALLS * 1e6


async def function_calls() -> float:
    """Microseconds of a recorded function call, less the function."""

    async def inner(text: str) -> str:
        return text

    traced, recorder = TracedFunction("look_up", inner), Recorder("step00000-00000-000", 7)

    async def ask(function: Callable[[str], Awaitable[str]]) -> float:
        began = time.process_time()
        for _ in range(CALLS):
            await function("oak")
        return time.process_time() - began

    bare = await ask(inner)
    with recording(recorder):
        return (await ask(traced) - bare) / CALLS * 1e6


async def rollouts() -> float:
    """Microseconds of a rollout that does nothing, scored once."""

    async def workflow(example: Example) -> str:
        return "done"

    async def score(example: Example, rollout: Rollout) -> Score:
        return Score(1.0)

    settings = RolloutSettings(max_concurrency=64, timeout_seconds=60.0, retries=1, failure_reward=None)
    service = RolloutService(TracedFunction("<workflow>", workflow), {"reward": score}, settings)
    examples = [Example(id=number, input="q") for number in range(CALLS // 4)]
    requests = requests_for(0, examples, 4, 7)
    began = time.process_time()
    await service.run(requests, policy_version=0, trained_rewards=["reward"])
    return (time.process_time() - began) / len(requests) * 1e6


def use_tool() -> None:
    """A tool call, recorded."""
    with record.tool("look_up", {"word": "oak"}) as tool:
        tool.result = "a tree"


async def measure() -> dict[str, float]:
    """One round; microseconds."""
    found: dict[str, float] = {}
    for name, shape in {
        "model call, 2 messages, 128 + 32 tokens": (2, 128, 32),
        "model call, 20 messages, 2,048 + 128 tokens": (20, 2048, 128),
        "model call, 60 messages, 16,384 + 512 tokens": (60, 16384, 512),
    }.items():
        recorded, written = await model_calls(*shape)
        found |= {name: recorded, f"{name}: kept": written}
    said = conversation(4, 40)
    found["reward"] = events(lambda number: record.reward("legal", 1.0, call=number))
    found["candidate, 4 messages of 40 words"] = events(
        lambda number: record.candidate("move", turn_id=number // 3, input=said, output="a text", score=0.5, call=number)
    )
    found["tool call"] = events(lambda number: use_tool())
    found["function call"] = await function_calls()
    found["rollout without a call, scored"] = await rollouts()
    return found


def bound(name: str) -> float | None:
    """What it may take; None where nothing was promised."""
    if name.startswith("rollout") or "16,384" in name:
        return None
    return CALL_BOUND if name.startswith("model call") else EVENT_BOUND


def table(found: dict[str, float]) -> str:
    """Markdown."""
    lines = ["| recording | µs of one core | bound |", "| --- | --- | --- |"]
    return "\n".join(lines + [f"| {name} | {value:,.1f} | {bound(name) or ''} |" for name, value in found.items()])


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--results", type=Path, help="write the table between this page's markers")
    given = parser.parse_args()
    rounds = [asyncio.run(measure()) for _ in range(given.repeat)]
    found = {name: median(each[name] for each in rounds) for name in rounds[0]}
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=2) + "\n")
    if given.results is not None:
        put(given.results, "harness", table(found))
    print(table(found))


if __name__ == "__main__":
    main()
