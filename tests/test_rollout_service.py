"""Rollouts: recorded, scored, failures attributed and kept."""

import asyncio
import math

import pytest

from nat_finetune import tracing
from nat_finetune.errors import BackendError, OutputError, PolicyFailure
from nat_finetune.interfaces import ChatReply
from nat_finetune.rollout_service import RolloutService, RolloutSettings, requests_for
from nat_finetune.tracing.context import current_path
from nat_finetune.tracing.traced import TracedChatModel, TracedFunction
from nat_finetune.types import Cause, Example, FinishReason, FunctionCall, ModelCall, RewardGiven, SamplingParams, Score

EXAMPLES = [Example("a", 1), Example("b", 2)]


class Echo:
    """A chat model that answers with its seed."""

    name = "echo"

    async def chat(self, messages, *, seed=None, **_):
        await asyncio.sleep(0)
        if messages[-1]["content"] == "down":
            raise BackendError("the endpoint is down")
        return ChatReply(
            {"role": "assistant", "content": str(seed)}, FinishReason.STOP, SamplingParams(max_tokens=8, seed=seed)
        )


def settings(**changes):
    values = {"max_concurrency": 4, "timeout_seconds": None, "retries": 0, "failure_reward": None} | changes
    return RolloutSettings(**values)


def run(workflow, evaluators=None, *, examples=EXAMPLES, generations=1, trained=(), **changes):
    async def one(example, rollout):
        return 1.0

    service = RolloutService(TracedFunction("<workflow>", workflow), evaluators or {"one": one}, settings(**changes))
    requests = requests_for(0, examples, generations, seed=1)
    return asyncio.run(service.run(requests, policy_version=3, trained_rewards=trained))


def test_calls_are_recorded_with_their_function_path():
    llm = TracedChatModel(Echo(), seeded=True)
    inner = TracedFunction("inner", lambda text: llm.chat([{"role": "user", "content": text}]))

    async def workflow(example):
        first = await inner("x")
        second, third = await asyncio.gather(inner("y"), inner("z"))
        tracing.reward("step", 0.5, call=second)
        return [first.text, second.text, third.text]

    rollouts = run(workflow)
    assert [r.example_id for r in rollouts] == ["a", "b"]
    calls = rollouts[0].model_calls
    assert [call.path for call in calls] == [("<workflow>", "inner")] * 3
    assert [call.messages[0]["content"] for call in calls] == ["x", "y", "z"]
    assert len({call.message["content"] for r in rollouts for call in r.model_calls}) == 6  # a seed of its own each
    functions = [e for e in rollouts[0].events if isinstance(e, FunctionCall)]
    assert functions[0].name == "<workflow>"
    assert functions[0].seq == 0
    assert functions[0].output == rollouts[0].output
    reward = next(e for e in rollouts[0].events if isinstance(e, RewardGiven))
    assert reward.call_seq == calls[1].seq
    assert rollouts[0].policy_version == 3


def test_the_same_seed_gives_the_same_rollouts_and_generations_differ():
    llm = TracedChatModel(Echo(), seeded=True)

    async def workflow(example):
        return (await llm.chat([{"role": "user", "content": "x"}])).text

    first, second = run(workflow, generations=3), run(workflow, generations=3)
    assert [r.output for r in first] == [r.output for r in second]
    assert len({r.output for r in first}) == 6


def test_threads_keep_the_function_path():
    paths = []

    async def inner():
        paths.append(await asyncio.to_thread(current_path))

    async def workflow(example):
        await TracedFunction("inner", inner)()

    run(workflow, examples=EXAMPLES[:1])
    assert paths == [("<workflow>", "inner")]


def test_a_policy_failure_is_an_outcome_and_earns_what_the_evaluator_says():
    async def workflow(example):
        raise PolicyFailure("not a number")

    async def evaluator(example, rollout):
        return 0.25 if rollout.failure else 1.0

    (rollout, _) = run(workflow, {"e": evaluator})
    assert rollout.failure.cause is Cause.POLICY
    assert rollout.rewards == {"e": 0.25}
    (rollout, _) = run(workflow, {"e": evaluator, "other": evaluator}, failure_reward=-1.0, trained=("e",))
    assert rollout.rewards == {"e": -1.0, "other": 0.25}


@pytest.mark.parametrize(
    ("content", "stage", "error_type"), [("down", "model", "BackendError"), ("x", "workflow", "ZeroDivisionError")]
)
def test_any_other_failure_leaves_the_reward_unknown(content, stage, error_type):
    llm = TracedChatModel(Echo(), seeded=False)

    async def workflow(example):
        await llm.chat([{"role": "user", "content": content}])
        return 1 // 0

    (rollout, _) = run(workflow)
    assert (rollout.failure.stage, rollout.failure.error_type) == (stage, error_type)
    assert rollout.failure.cause is Cause.INFRASTRUCTURE
    assert rollout.rewards == {"one": None}
    assert rollout.events[-1] == rollout.failure


def test_a_timeout_is_named_and_the_finished_part_kept():
    llm = TracedChatModel(Echo(), seeded=False)

    async def workflow(example):
        await llm.chat([{"role": "user", "content": "x"}])
        await asyncio.sleep(60)

    (rollout, _) = run(workflow, timeout_seconds=0.05)
    assert rollout.failure.stage == "timeout"
    assert "finetuning.rollout_timeout_seconds = 0.05" in rollout.failure.message
    assert len([e for e in rollout.events if isinstance(e, ModelCall)]) == 1


def test_a_timeout_inside_the_workflow_is_the_workflows():
    async def workflow(example):
        raise TimeoutError("a service of mine")

    (rollout, _) = run(workflow, timeout_seconds=5)
    assert (rollout.failure.stage, rollout.failure.message) == ("workflow", "a service of mine")


def test_retries_are_fresh_and_the_replaced_attempts_are_kept():
    tries = {"a": 0, "b": 0}

    async def workflow(example):
        tries[example.id] += 1
        if example.id == "a" and tries["a"] < 3:
            raise RuntimeError(f"try {tries['a']}")
        return tries[example.id]

    rollouts = run(workflow, retries=2)
    ids = [(r.rollout_id.partition("~")[2], r.output, r.attempts) for r in rollouts]
    assert ids == [("1", None, 1), ("2", None, 2), ("", 3, 3), ("", 1, 1)]
    assert [r.rewards["one"] for r in rollouts] == [None, None, 1.0, 1.0]
    assert len({r.seed for r in rollouts}) == 4


def test_a_policy_failure_is_not_retried():
    tries = []

    async def workflow(example):
        tries.append(1)
        raise PolicyFailure("illegal")

    run(workflow, retries=3, examples=EXAMPLES[:1])
    assert len(tries) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.5", RuntimeError("judge down")])
def test_what_can_not_be_a_reward_is_unknown_and_says_why(value):
    async def workflow(example):
        return "x"

    async def evaluator(example, rollout):
        if isinstance(value, Exception):
            raise value
        return value

    (rollout, _) = run(workflow, {"judge": evaluator})
    assert rollout.rewards == {"judge": None}
    assert rollout.failure is None
    event = rollout.events[-1]
    assert event.stage == "evaluator"
    assert "evaluator judge: " in event.message


def test_scores_and_bools_are_numbers():
    async def workflow(example):
        return "x"

    async def score(example, rollout):
        return Score(0.5, "because")

    async def flag(example, rollout):
        return True

    async def unknown(example, rollout):
        return Score(None)

    (rollout, _) = run(workflow, {"score": score, "flag": flag, "unknown": unknown})
    assert rollout.rewards == {"score": 0.5, "flag": 1.0, "unknown": None}
    assert not [e for e in rollout.events if getattr(e, "stage", None) == "evaluator"]


def test_no_more_than_max_concurrency_run_at_once():
    running, most = 0, 0

    async def workflow(example):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    run(workflow, examples=[Example(i, i) for i in range(20)], max_concurrency=3)
    assert most == 3


def test_rollouts_are_scored_and_kept_while_others_still_run():
    """A slow rollout holds nothing up but itself: it only goes on once the other one has been scored and given to the run."""
    kept = []
    scored = asyncio.Event()

    async def workflow(example):
        if example.id == "a":
            await asyncio.wait_for(scored.wait(), 10)

    async def one(example, rollout):
        return 1.0

    def keep(rollout):
        kept.append((rollout.example_id, rollout.rewards))
        scored.set()

    async def run_both():
        service = RolloutService(TracedFunction("<workflow>", workflow), {"one": one}, settings())
        return await service.run(requests_for(0, EXAMPLES, 1, seed=1), policy_version=0, on_done=keep)

    rollouts = asyncio.run(run_both())
    assert [rollout.failure for rollout in rollouts] == [None, None]
    assert kept == [("b", {"one": 1.0}), ("a", {"one": 1.0})]


def test_an_error_of_the_run_itself_ends_it():
    async def workflow(example):
        return 1

    def on_done(rollout):
        raise OutputError("disk full")

    async def one(example, rollout):
        return 1.0

    service = RolloutService(TracedFunction("<workflow>", workflow), {"one": one}, settings())
    with pytest.raises(OutputError, match="disk full"):
        asyncio.run(service.run(requests_for(0, EXAMPLES, 1, seed=1), policy_version=0, on_done=on_done))


class Ranker:
    """Compares the rollouts of an example: the longer answer is better."""

    def __init__(self):
        self.seen = []

    async def __call__(self, example, rollout):
        raise AssertionError("a group evaluator is asked for the group")

    async def evaluate_group(self, example, rollouts):
        self.seen.append([rollout.rollout_id for rollout in rollouts])
        best = max(len(rollout.output or "") for rollout in rollouts)
        return [Score(float(len(r.output or "") == best), f"{best} is best") for r in rollouts]


def lengths(*failing):
    """A workflow whose generations answer with ever longer texts, in no order of ending; the named ones fail."""
    counts = {}

    async def workflow(example):
        generation = counts[example.id] = counts.get(example.id, -1) + 1
        await asyncio.sleep(0.003 * (3 - generation))
        if generation in failing:
            raise PolicyFailure("no answer") if generation == failing[0] else RuntimeError("the service is down")
        return "x" * (generation + 1)

    return workflow


def test_rollouts_of_an_example_are_compared_once_all_have_ended():
    ranker = Ranker()
    rollouts = run(lengths(), {"rank": ranker}, generations=3, max_concurrency=2)
    assert [r.rewards["rank"] for r in rollouts] == [0.0, 0.0, 1.0] * 2
    assert {r.reasons["rank"] for r in rollouts} == {"3 is best"}
    ids = [r.rollout_id for r in rollouts]
    assert sorted(ranker.seen) == [ids[:3], ids[3:]]


def test_a_policy_failure_is_compared_too_and_one_by_accident_is_not():
    ranker = Ranker()
    rollouts = run(lengths(0, 1), {"rank": ranker}, generations=3, failure_reward=-1.0, trained=("rank",))
    assert [r.rewards["rank"] for r in rollouts[:3]] == [-1.0, None, 1.0]
    assert ranker.seen[0] == [rollouts[0].rollout_id, rollouts[2].rollout_id]
    assert "rank" not in rollouts[0].reasons  # the reward is not what the evaluator said


def test_rollouts_that_were_scored_before_are_compared_with_and_stay_as_they_are():
    ranker, seen = Ranker(), []
    service = RolloutService(TracedFunction("<workflow>", lengths()), {"rank": ranker}, settings())
    requests = requests_for(0, EXAMPLES[:1], 3, seed=1)
    before = asyncio.run(service.run(requests[1:], policy_version=0))
    rollouts = asyncio.run(service.run(requests[:1], policy_version=0, beside=before, on_done=seen.append))
    assert rollouts == seen
    assert [r.rollout_id for r in rollouts] == [requests[0].rollout_id]
    assert ranker.seen[-1] == [request.rollout_id for request in requests]


@pytest.mark.parametrize("wrong", [[1.0], [1.0, math.nan, "good"], RuntimeError("the judge is down")])
def test_what_a_comparison_does_not_say_is_unknown(wrong):
    class Wrong(Ranker):
        async def evaluate_group(self, example, rollouts):
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

    rollouts = run(lengths(), {"rank": Wrong()}, generations=3, examples=EXAMPLES[:1])
    known = [r.rewards["rank"] for r in rollouts]
    assert known == ([1.0, None, None] if len(rollouts) == len(wrong if isinstance(wrong, list) else []) else [None] * 3)
    failures = [r.events[-1] for r in rollouts if r.rewards["rank"] is None]
    assert {failure.stage for failure in failures} == {"evaluator"}
    assert all(failure.message.startswith("evaluator rank: ") for failure in failures)
