"""How turns became token sequences, in sentences."""

from nat_finetune.report.segments import segments_account


def step(truncated=0, **segments):
    return {"segments": segments, "truncated": truncated}


def test_nothing_is_said_of_rollouts_of_one_turn():
    assert segments_account([step(trajectories=4, turns=4, merged=0, first=4), {"segments": None}, {}]) == []


def test_every_reason_is_counted_over_all_steps():
    steps = [
        step(2, trajectories=2, turns=6, merged=1, first=2, re_rendered=3),
        step(trajectories=1, turns=3, first=1, merged=1, other=1),
    ]
    assert segments_account(steps) == [
        "2 rollouts were cut off by max_tokens in a trained call",
        "9 turns of 3 trajectories became 7 token sequences: 2 extended an earlier one token for token, 3 began their rollout",
        "3 sequences began anew: the chat template dropped or re-rendered earlier text, the sampled reply included",
        "1 sequences began anew: another conversation: a sub-agent, a fresh prompt, a compacted history",
    ]
