"""Which groups an epoch trains on."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nat_finetune.data.curriculum import CurriculumRules, select_groups
from nat_finetune.errors import ConfigError, NoTrainableSignal

ON = CurriculumRules(enabled=True)


@pytest.mark.parametrize(
    "rules",
    [
        {"initial_percentile": 0.0},
        {"increment_percentile": 1.5},
        {"random_subsample": 0.0},
        {"random_subsample": 1.01},
        {"expansion_interval": 0},
    ],
)
def test_rules_that_can_not_be(rules):
    with pytest.raises(ConfigError, match=f"config: {next(iter(rules))}"):
        CurriculumRules(**rules)


def test_percentiles_grow_by_the_interval_and_end_at_one():
    rules = CurriculumRules(enabled=True, initial_percentile=0.1, increment_percentile=0.3, expansion_interval=2)
    assert [rules.percentile(epoch) for epoch in range(10)] == pytest.approx([0.1, 0.1, 0.4, 0.4, 0.7, 0.7, 1, 1, 1, 1])
    assert [rules.last_expansion(epoch) for epoch in range(10)] == [-1, -1, 2, 2, 4, 4, 6, 6, 6, 6]
    assert rules.percentile(6) == 1.0  # 0.1 + 0.3 * 3 is a little less


def test_no_groups_still_know_the_epoch():
    selected = select_groups([], CurriculumRules(enabled=True, expansion_interval=1), epoch=2, seed=0)
    assert (selected.groups, selected.percentile, selected.last_expansion_epoch) == ((), 0.7, 2)


def test_a_percentile_that_is_a_little_more_selects_no_group_more():
    rules = CurriculumRules(enabled=True, initial_percentile=0.1, increment_percentile=0.2, expansion_interval=1)
    groups = [[0.0, 1.0]] * 10
    assert len(select_groups(groups, rules, epoch=1, seed=0).groups) == 3  # 10 * (0.1 + 0.2) is 3.0000000000000004


def test_unknown_rewards_are_counted_in_kept_groups_only():
    groups = [[None, 0.0, 1.0], [math.nan, 0.5], [0.5, 0.5, None], [1.0, 0.0, 0.0]]
    selected = select_groups(groups, CurriculumRules(enabled=True, initial_percentile=1.0), epoch=0, seed=0)
    assert selected.groups == (0, 3)
    assert selected.members == ((1, 2), (0, 1, 2))
    assert [(drop.what, drop.reason.value) for drop in selected.dropped] == [
        ("trajectory", "unknown_reward"),
        ("group", "too_few_rewards"),
        ("group", "low_spread"),
    ]


def test_all_groups_dropped_is_no_signal():
    with pytest.raises(NoTrainableSignal, match="none of 2 groups"):
        select_groups([[0.5, 0.5], [1.0]], ON, epoch=0, seed=0)


rewards = st.lists(st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=6)


@given(st.lists(rewards, max_size=8), st.booleans(), st.sampled_from([None, 0.3, 1.0]), st.integers(0, 12), st.integers(0, 3))
def test_what_is_selected_and_what_is_dropped_is_everything(groups, ascending, share, epoch, seed):
    rules = CurriculumRules(enabled=True, sort_ascending=ascending, random_subsample=share)
    try:
        selected = select_groups(groups, rules, epoch=epoch, seed=seed)
    except NoTrainableSignal:
        return
    assert selected == select_groups(groups, rules, epoch=epoch, seed=seed)
    gone = [drop for drop in selected.dropped if drop.what == "group"]
    assert len(selected.groups) + len(gone) == len(groups)
    means = []
    for position, members in zip(selected.groups, selected.members, strict=True):
        known = [i for i, reward in enumerate(groups[position]) if reward is not None and not math.isnan(reward)]
        assert list(members) == sorted(set(members) & set(known))
        assert len(members) == (len(known) if share is None else max(2, math.ceil(share * len(known) - 1e-9)))
        means.append(sum(groups[position][i] for i in known) / len(known))
    assert means == sorted(means, reverse=not ascending)


def test_draws_differ_by_seed_epoch_and_group():
    rules = CurriculumRules(enabled=True, initial_percentile=1.0, random_subsample=0.2)
    groups = [[i / 20 for i in range(20)]] * 2
    drawn = [select_groups(groups, rules, epoch=epoch, seed=seed).members for epoch in (0, 1) for seed in (0, 1)]
    assert len({members for selected in drawn for members in selected}) == 8
