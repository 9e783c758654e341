"""From rewards to the advantages that are trained: the golden GDPO values through the whole path, and what is logged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from nat_finetune.adapters.local_settings import PolicyGradientConfig
from nat_finetune.algorithms.presets import PRESETS
from nat_finetune.data.rewards import paid_rewards
from nat_finetune.local.group_advantages import OVERLONG, advantages_of_turns
from nat_finetune.types import FinishReason, RewardCondition, RewardTerm, Segment, Trajectory, Turn

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gdpo_advantages.json").read_text())["cases"]
GDPO = PRESETS["gdpo"]
TERMS = (RewardTerm("format"), RewardTerm("right"))


def member(rewards, *, credits=(None,), tokens=1, terms=TERMS):
    """A rollout with so many turns, each a segment of `tokens` sampled tokens."""
    segments = tuple(
        Segment(
            (1, *[2] * tokens),
            (0, *[1] * tokens),
            (0.0, *[-1.0] * tokens),
            (Turn(index, 1, 1 + tokens, index, FinishReason.STOP, 1.0, credit),),
        )
        for index, credit in enumerate(credits)
    )
    return Trajectory("r", 1, segments, {term.name: value for term, value in zip(terms, rewards, strict=True)})


def advantages(members, ids, preset=GDPO, terms=TERMS, length_limit=None):
    found = advantages_of_turns(members, ids, preset, terms=terms, length_limit=length_limit)
    return [[turn for segment in rollout for turn in segment] for rollout in found.by_turn], found.shares


def of_rollouts(rows, ids, preset=GDPO, terms=TERMS):
    values, shares = advantages([member(row, terms=terms) for row in rows], ids, preset, terms)
    return [value for (value,) in values], shares


def golden(variant):
    return [
        pytest.param(c, id=c["id"]) for c in GOLDEN if c["config"].get("variant") == variant and "advantages" in c["expected"]
    ]


@pytest.mark.parametrize("case", golden("trl"))
def test_the_golden_values_come_out_of_the_settings(case):
    """TRL's variant is what `algorithm: {name: gdpo}` does, its eps included."""
    names, asked = case["inputs"]["reward_names"], dict(case["config"].get("condition") or {})
    weights = case["config"].get("reward_weights") or [1.0] * len(names)
    conditions = {asked.pop("reward"): RewardCondition(**asked)} if asked else {}
    terms = tuple(RewardTerm(name, weight, conditions.get(name)) for name, weight in zip(names, weights, strict=True))
    given = case["inputs"]["raw_rewards" if asked else "rewards"]
    scores = [[None if value == "NaN" else float(value) for value in row] for row in given]
    rows = [list(paid_rewards(dict(zip(names, row, strict=True)), terms).values()) for row in scores]
    preset = PolicyGradientConfig(name="gdpo", eps=case["config"].get("eps_group", 1e-4)).preset()
    found, _ = of_rollouts(rows, case["inputs"]["group_ids"], preset, terms)
    assert found == pytest.approx([float(value) for value in case["expected"]["advantages"]], abs=1e-9)


def test_the_arms_of_a_comparison_differ_as_they_should():
    """One group (format, right): the sum sees 4, 3, -2, -1; GDPO gives each reward unit spread first."""
    rows, ids = [(1, 3), (0, 3), (1, -3), (0, -1)], [0] * 4
    totals = torch.tensor([4.0, 3.0, -2.0, -1.0]).double()
    summed, _ = of_rollouts(rows, ids, PRESETS["grpo"])
    assert summed == pytest.approx(((totals - 1) / (totals.std() + 1e-4)).tolist())
    normed, _ = of_rollouts(rows, ids, PolicyGradientConfig(name="grpo", batch_norm=True).preset())
    assert normed == pytest.approx(summed, abs=1e-3)  # of one group, the second normalisation changes nothing
    equal = (RewardTerm("format", 1.0), RewardTerm("right", 1 / 6))  # by the ranges 0..1 and -3..3
    equalised, _ = of_rollouts(rows, ids, PRESETS["grpo"], equal)
    apart, _ = of_rollouts(rows, ids)
    assert apart == pytest.approx([1.3371, -0.0256, -0.2367, -1.0748], abs=1e-3)
    assert summed[1] > 0.5  # right without the format is nearly as good as with it
    assert equalised[1] == pytest.approx(equalised[2]) == pytest.approx(-0.1213, abs=1e-3)


def test_one_reward_takes_the_same_two_steps():
    rows, ids, terms = [(1,), (0,), (0,), (5,), (1,), (1,)], [0, 0, 0, 1, 1, 1], (RewardTerm("right"),)
    apart, shares = of_rollouts(rows, ids, terms=terms)
    summed, _ = of_rollouts(rows, ids, PolicyGradientConfig(name="grpo", batch_norm=True).preset(), terms)
    assert apart == pytest.approx(summed)
    assert torch.tensor(apart).double().std() == pytest.approx(1, abs=1e-3)
    assert shares == {}


def test_the_batch_is_what_the_builder_left():
    """Flat groups would bring zeros: without them the deviation over the batch is that of the groups that are trained."""
    rows, ids = [(1, 1), (0, 0)], [0, 0]
    alone, _ = of_rollouts(rows, ids)
    assert alone == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-3)
    with_flat, _ = of_rollouts([*rows, (1, 1), (1, 1)], [*ids, 1, 1])
    assert with_flat[0] == pytest.approx(1.5**0.5, abs=1e-3)
    assert with_flat[2:] == [0, 0]


def test_unknown_rewards_are_left_out_and_a_rollout_without_any_gets_nothing():
    rows, ids = [(1, None), (0, 1), (None, 0), (None, None)], [0] * 4
    found, _ = of_rollouts(rows, ids, replace(GDPO, batch_norm=False, eps=0.0))
    half = 0.5**0.5
    assert found == pytest.approx([half, -half + half, -half, 0])
    summed, _ = of_rollouts(rows, ids, replace(PRESETS["grpo"], scale="none"))
    assert summed == [0, 0, 0, 0]  # a sum needs all of its parts


def test_how_much_each_reward_had_to_do_with_it():
    rows, ids = [(1, 3), (0, 3), (1, -3), (0, -3)], [0] * 4
    assert of_rollouts(rows, ids)[1] == pytest.approx({"format": 0.5, "right": 0.5}, abs=1e-3)
    assert of_rollouts(rows, ids, PRESETS["grpo"])[1] == pytest.approx({"format": 1 / 7, "right": 6 / 7})
    weighted = (RewardTerm("format", 3.0), RewardTerm("right", -1.0))
    assert of_rollouts(rows, ids, terms=weighted)[1] == pytest.approx({"format": 0.75, "right": 0.25}, abs=1e-3)
    assert of_rollouts([(1, 1), (1, 1)], [0, 0])[1] == {}


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_the_overlong_penalty_has_a_share_of_its_own(scale):
    preset = replace(PRESETS["dapo"], scale=scale)
    members = [member((1, 0), tokens=4), member((0, 0), tokens=1)]
    values, shares = advantages(members, [0, 0], preset, length_limit=4)
    assert shares == pytest.approx({"format": 0.5, "right": 0.0, OVERLONG: 0.5})
    assert values == [[0], [0]]


def test_turns_with_credit_are_normalised_over_the_turns_of_the_batch():
    members = [member((1, 1), credits=(2.0, 0.0)), member((0, 0), credits=(0.0, None)), member((0, 1), credits=(1.0, 3.0))]
    values, shares = advantages(members, [0] * 3)
    flat = torch.tensor([turn for rollout in values for turn in rollout]).double()
    assert (flat.mean().item(), flat.std().item()) == pytest.approx((0, 1), abs=1e-3)
    assert shares == {}
    plain, _ = advantages(members, [0] * 3, replace(GDPO, batch_norm=False, eps=0.0))
    assert plain[0] == pytest.approx([1.0, -(0.5**0.5)])


ROWS, IDS = [(1, 3), (0, 1), (1, None), (0, -1), (1, 1), (0, 0), (1, 0), (0, 2), (0, 1)], [0, 0, 0, 0, 1, 1, 2, 2, 2]
CREDITS = [(1.0, 0.5), (0.0,), (None, 1.0), (2.0,), (1.0,), (0.5, None), (1.0, 1.0), (0.0, 0.0), (3.0,)]


def _members(rows, credits):
    return [member(row, credits=own) for row, own in zip(rows, credits, strict=True)]


def _both_ways(own, ids):
    """Advantages and shares without and with credit of the turns."""
    plain = [(None,)] * len(ids)
    return [advantages(_members(ROWS[own], credits), ids) for credits in (plain, CREDITS[own])]


def _ranked(rank, folder):
    """Rank 0 has the first two groups, rank 1 the third; each counts its groups from 0."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = _both_ways(slice(0, 6), IDS[:6]) if rank == 0 else _both_ways(slice(6, 9), [0, 0, 0])
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def test_two_processes_give_what_one_gives(tmp_path):
    mp.spawn(_ranked, args=(str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for one, (values_0, shares_0), (values_1, shares_1) in zip(_both_ways(slice(0, 9), IDS), first, second, strict=True):
        for ranked, whole in zip([*values_0, *values_1], one[0], strict=True):
            assert ranked == pytest.approx(whole, abs=1e-12)
        assert shares_0 == shares_1 == pytest.approx(one[1])
