"""Groups become ART's: histories, messages of their roles, sampled turns with their tokens; a bad rollout costs only itself."""

import math
from dataclasses import replace

import pytest
from nat_finetune_plugins.openpipe_art.components import ArtTrajBuilder
from nat_finetune_plugins.openpipe_art.config import ArtTrajBuilderConfig
from nat_finetune_plugins.openpipe_art.trajectories import convert
from nat_finetune_plugins.openpipe_art.wire import Dialect

from nat_finetune.testing.art_bodies import train_problems
from nat_finetune.testing.parts import REWARD, TARGET
from nat_finetune.testing.rollouts import FakeRecorder
from nat_finetune.types import Dropped, DropReason, FinishReason, Group, ModelCall, RewardTerm

OLD = Dialect("0.4", "beta", False, "/_delete_checkpoints")
NEW = Dialect("0.5", "kl_penalty_coef", True, "/_delete_checkpoint_files")
TOOLS = ({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},)
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
TOLD = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}


def one_turn(number, reward, **changes):
    record = FakeRecorder("e", generation=number)
    call = record.model_call(f"yes {number}")
    return changed(record.rollout(rewards={REWARD: reward}), {call.seq: changes})


def with_tools(number, reward):
    """Asked, called a tool, got its answer, said something: the second prompt goes on from the first turn."""
    record = FakeRecorder("e", generation=number)
    asked = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is up?"}]
    first = record.model_call("", prompt=asked, finish_reason=FinishReason.TOOL_CALLS)
    said = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "a cloud", "name": "ignored by the protocol"}
    second = record.model_call("a cloud", prompt=[*asked, {**said, "content": ""}, answer], finish_reason=FinishReason.LENGTH)
    return changed(
        record.rollout(rewards={REWARD: reward}), {first.seq: {"message": said, "tools": TOOLS}, second.seq: {"tools": TOOLS}}
    )


def changed(rollout, changes):
    """The rollout with these fields of its calls, by `seq`; without ids of prompts, as of 0.4.11's endpoint."""
    events = tuple(
        replace(event, **{"prompt_ids": None, **changes.get(event.seq, {})}) if isinstance(event, ModelCall) else event
        for event in rollout.events
    )
    return replace(rollout, events=events)


def built(*rollouts):
    return list(ArtTrajBuilder(ArtTrajBuilderConfig(), TARGET).build(rollouts))


def converted(*rollouts, dialect=NEW, target=TARGET):
    items = built(*rollouts)
    assert all(isinstance(item, Group) for item in items), items
    return convert(items, target, dialect, 4)


def test_the_builder_keeps_calls_and_needs_no_ids_of_prompts():
    (group,) = built(one_turn(0, 1.0), one_turn(1, 0.0))
    assert [len(trajectory.calls) for trajectory in group.trajectories] == [1, 1]
    assert group.trajectories[0].calls[0].prompt_ids is None
    assert group.trajectories[0].trainable_tokens == len(group.trajectories[0].calls[0].completion_ids)
    assert isinstance(built(one_turn(0, 1.0, logprobs=None), one_turn(1, 0.0))[0], Dropped)


@pytest.mark.parametrize("dialect", [OLD, NEW], ids=["0.4", "0.5"])
def test_a_turn_carries_its_tokens_and_what_it_earned(dialect):
    made = converted(one_turn(0, 1.0, logprobs=(-0.5,) * 6), one_turn(1, 0.25), dialect=dialect)
    first, second = made.groups[0]["trajectories"]
    prompt, choice = first["messages_and_choices"]
    assert prompt == {"role": "user", "content": "well?"}
    assert [token["token"] for token in choice["logprobs"]["content"]] == [f"token_id:{b}" for b in (*b"yes 0", 256)]
    assert {token["logprob"] for token in choice["logprobs"]["content"]} == {-0.5}
    assert (choice["finish_reason"], choice["message"]["content"], choice["index"]) == ("stop", "yes 0", 0)
    assert (first["reward"], second["reward"]) == (1.0, 0.25)
    assert first["metadata"] == {"example_id": '"e"', "rollout_id": "e-0"}
    assert first.get("initial_policy_version") == (None if dialect is OLD else 4)
    assert (made.trajectories, made.tokens, made.dropped) == (2, 12, ())
    model = {"name": "m", "project": "p", "base_model": "b", "config": None, "trainable": True}
    assert not [problem for problem in train_problems({"model": model, "trajectory_groups": made.groups, "config": {},
                "dev_config": {}, "verbose": False}, dialect.generation) if "trajectory_groups" in problem]  # fmt: skip


def test_tools_their_calls_their_answers_and_finish_reasons_stay_what_they_are():
    made = converted(with_tools(0, 1.0), with_tools(1, 0.0), dialect=OLD)  # 0.4.11: every assistant's message was sampled
    trajectory = made.groups[0]["trajectories"][0]
    system, user, first, tool, second = trajectory["messages_and_choices"]
    assert (system["role"], user["role"]) == ("system", "user")
    assert first["message"]["tool_calls"] == [TOLD]
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "a cloud"}
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "length")
    assert trajectory["tools"] == list(TOOLS)
    assert trajectory["additional_histories"] == []


def test_calls_that_do_not_go_on_from_one_another_are_histories():
    record = FakeRecorder("e", generation=0)
    record.model_call("a", prompt="first")
    record.model_call("b", prompt="second")
    record.model_call("c", prompt=[{"role": "user", "content": "first"}, {"role": "assistant", "content": "a"},
                                   {"role": "user", "content": "and?"}])  # fmt: skip
    made = converted(changed(record.rollout(rewards={REWARD: 1.0}), {}), one_turn(1, 0.0))
    trajectory = made.groups[0]["trajectories"][0]
    assert len(trajectory["messages_and_choices"]) == 4, "the third goes on from the first"
    assert [len(history["messages_and_choices"]) for history in trajectory["additional_histories"]] == [2]


@pytest.mark.parametrize(("ids", "histories"), [("extending", 1), ("rewritten", 2), ("unknown", 1)])
def test_a_template_that_rewrites_earlier_turns_starts_a_history(ids, histories):
    first_ids, second_ids = {"extending": ((1, 2), (1, 2, *b"a", 256, 3)), "rewritten": ((1, 2), (1, 2, 3)),
                             "unknown": (None, None)}[ids]  # fmt: skip
    record = FakeRecorder("e", generation=0)
    first = record.model_call("a", prompt="first")
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "?"}]
    second = record.model_call("b", prompt=messages)
    rollout = changed(
        record.rollout(rewards={REWARD: 1.0}), {first.seq: {"prompt_ids": first_ids}, second.seq: {"prompt_ids": second_ids}}
    )
    trajectory = converted(rollout, one_turn(1, 0.0)).groups[0]["trajectories"][0]
    assert 1 + len(trajectory["additional_histories"]) == histories


EXAMPLES = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "2+2"}]
BAD = {
    "few-shot examples on 0.4.11": ({"messages": tuple(EXAMPLES)}, OLD, DropReason.NOT_IN_FORMAT),
    "a role that nobody knows": ({"messages": ({"role": "oracle", "content": "x"},)}, NEW, DropReason.CONTEXT_NOT_MESSAGES),
    "a tool without an id": ({"messages": ({"role": "tool", "content": "x"},)}, NEW, DropReason.CONTEXT_NOT_MESSAGES),
    "content that is no text": ({"messages": ({"role": "user", "content": 5},)}, NEW, DropReason.CONTEXT_NOT_MESSAGES),
    "a part of no kind": ({"messages": ({"role": "user", "content": ["x"]},)}, NEW, DropReason.CONTEXT_NOT_MESSAGES),
    "a tool that is none": ({"tools": ({"name": "look"},)}, NEW, DropReason.CONTEXT_NOT_MESSAGES),
    "a logprob of -inf": ({"logprobs": (-math.inf,) * 6}, NEW, DropReason.NO_LOGPROBS),
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_rollout_costs_itself_only(name):
    changes, dialect, reason = BAD[name]
    rollouts = [one_turn(0, 1.0), one_turn(1, 0.0), one_turn(2, 0.5, **changes)]
    made = converted(*rollouts, dialect=dialect)
    assert [len(group["trajectories"]) for group in made.groups] == [2]
    assert [(drop.what, drop.reason, drop.rollout_id) for drop in made.dropped] == [("trajectory", reason, "e-2")]
    made = converted(rollouts[0], rollouts[2], dialect=dialect)
    assert made.groups == ()
    assert [drop.reason for drop in made.dropped] == [reason, DropReason.TOO_FEW_ROLLOUTS]


def test_examples_in_the_prompt_stay_messages_on_0_5():
    made = converted(one_turn(0, 1.0, messages=tuple(EXAMPLES)), one_turn(1, 0.0))
    roles = [item.get("role", "choice") for item in made.groups[0]["trajectories"][0]["messages_and_choices"]]
    assert roles == ["user", "assistant", "user", "choice"]


def test_rewards_are_summed_by_their_weights_and_told_one_by_one():
    target = replace(TARGET, rewards=(RewardTerm("a", 1.0), RewardTerm("b", 0.5)))
    rollouts = [replace(one_turn(n, None), rewards={"a": float(n), "b": 1.0}) for n in (0, 1)]
    items = list(ArtTrajBuilder(ArtTrajBuilderConfig(), target).build(rollouts))
    trajectories = convert(items, target, NEW, 0).groups[0]["trajectories"]
    assert [trajectory["reward"] for trajectory in trajectories] == [0.5, 1.5]
    assert trajectories[1]["metrics"] == {"reward/a": 1.0, "reward/b": 1.0}


def test_a_thought_that_the_template_opens_is_known_by_its_bytes():
    made = converted(one_turn(0, 1.0, message={"role": "assistant", "content": "<think>so"}), one_turn(1, 0.0))
    tokens = made.groups[0]["trajectories"][0]["messages_and_choices"][1]["logprobs"]["content"]
    assert bytes(tokens[0]["bytes"]) == b"<think>"
    assert tokens[1]["bytes"] is None
