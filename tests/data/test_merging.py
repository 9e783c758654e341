"""Why a segment began is told from the messages, not guessed."""

from nat_finetune.data.groups import build_groups
from nat_finetune.data.merging import MergeCounts, count_merges
from nat_finetune.data.trajectories import Credit
from nat_finetune.types import FinishReason, Group, ModelCall, RewardGiven, RewardTerm, Rollout, SamplingParams, Target

TARGET = Target(("player",), "policy", (RewardTerm("outcome"),))
USER, REPLY, TOOL = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "tool", "content": "t"}


def call(seq, messages, prompt, sampled=(9,)):
    return ModelCall(
        rollout_id="r",
        seq=seq,
        path=("player",),
        start=0.0,
        end=0.0,
        llm="policy",
        messages=tuple(messages),
        message=REPLY,
        finish_reason=FinishReason.STOP,
        sampling=SamplingParams(max_tokens=8),
        prompt_ids=tuple(prompt),
        completion_ids=tuple(sampled),
        logprobs=(-0.5,) * len(sampled),
    )


def counts(*calls, rewards=(), credit=None):
    paid = [
        RewardGiven(rollout_id="r", seq=100 + i, path=(), start=0.0, end=0.0, name="s", value=v, call_seq=seq)
        for i, (seq, v) in enumerate(rewards)
    ]
    rollouts = [Rollout(f"r{o}", 1, 0, 0, (*calls, *paid), rewards={"outcome": o}) for o in (0.0, 1.0)]
    (group,) = build_groups(rollouts, TARGET, credit or Credit())
    assert isinstance(group, Group)
    both = count_merges(rollouts, [group])
    one = count_merges(rollouts, [Group(1, group.trajectories[:1])])
    assert both == one + one
    return one


def test_a_conversation_that_keeps_its_tokens_is_one_segment():
    found = counts(call(0, [USER], [1]), call(1, [USER, REPLY, TOOL], [1, 9, 3]))
    assert found == MergeCounts(trajectories=1, turns=2, merged=1, first=1, without_credit=2)


def test_each_reason():
    found = counts(
        call(0, [USER], [1]),
        call(1, [USER], [1]),
        call(2, [USER, REPLY, TOOL], [1, 8, 3]),
        call(3, [USER, {"role": "assistant", "content": "better"}, TOOL], [1, 7, 3]),
        call(4, [{"role": "user", "content": "sub-agent"}], [5]),
        call(5, [USER, TOOL], [1, 3]),
    )
    assert found == MergeCounts(
        trajectories=1, turns=6, merged=0, first=1, repeated=1, re_rendered=1, edited=1, other=2, without_credit=6
    )


def test_the_longest_continued_call_decides():
    longer = [USER, REPLY, TOOL]
    found = counts(
        call(0, [USER], [1]),
        call(1, longer, [1, 9, 3]),
        call(2, [*longer, {"role": "assistant", "content": "edited"}, TOOL], [1, 9, 4]),
    )
    assert (found.merged, found.edited, found.re_rendered) == (1, 1, 0)


def test_another_question_is_another_conversation():
    found = counts(call(0, [USER], [1]), call(1, [{"role": "user", "content": "v"}, REPLY, TOOL], [2, 9, 3]))
    assert (found.other, found.re_rendered) == (1, 0)


def test_turns_that_the_outcome_pays_are_counted():
    found = counts(call(0, [USER], [1]), call(1, [USER], [2]), rewards=[(0, 1.0)], credit=Credit(per_turn=True, discount=0.0))
    assert (found.turns, found.without_credit) == (2, 1)


def test_nothing_counts_nothing():
    assert count_merges([], []) == MergeCounts()
