"""Which groups are trained, and how long a run goes on with nothing to train on."""

import pytest

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.data.curriculum import CurriculumRules
from nat_finetune.interfaces import Step
from nat_finetune.runstore import RunState, RunStore
from nat_finetune.steps.selection import Curriculum, Ending, SignalWatch, further_examples
from nat_finetune.types import Dropped, DropReason, Example, Group, RewardTerm, Target, Trajectory
from tests.data.rollouts import TARGET, rollout

SOMETHING = [Group("e", (Trajectory("r", "e", (), {"outcome": 1.0}),))]


def watch(state, *, patience=3, best=1.0, per_epoch=10):
    config = FinetuningConfig(flat_patience=patience)
    return SignalWatch(state, config, TARGET, {"outcome": best}, per_epoch)


@pytest.mark.parametrize(
    ("outcomes", "endings"),
    [
        ([0.0, 0.0, 0.0], [None, None, Ending.NO_SIGNAL]),
        ([1.0, 1.0, 1.0], [None, None, Ending.NOTHING_LEFT]),
        ([0.0, 1.0, 1.0, 1.0], [None, None, Ending.NO_SIGNAL, Ending.NOTHING_LEFT]),  # several levels: not mastered
        ([1.0, None, 1.0], [None, None, Ending.NO_SIGNAL]),
    ],
)
def test_flat_steps_in_a_row_end_the_run(outcomes, endings):
    signal = watch(RunState())
    assert [signal.look([], [rollout(outcome=outcome)]) for outcome in outcomes] == endings


def test_a_step_with_signal_starts_the_count_anew():
    state = RunState()
    signal = watch(state)
    signal.look([], [rollout()])
    signal.look([], [rollout()])
    assert signal.look(SOMETHING, [rollout()]) is None
    assert (state.steps_without_signal, state.steps_at_best) == (0, 0)


def test_an_epoch_of_fewer_steps_is_enough():
    assert watch(RunState(), per_epoch=1).look([], [rollout(outcome=0.0)]) is Ending.NO_SIGNAL


def test_the_count_outlives_a_crash():
    state = RunState(steps_without_signal=2, steps_at_best=2)
    assert watch(state).look([], [rollout()]) is Ending.NOTHING_LEFT


# ------------------------------------------------------------------------------------------------------------ curriculum


def group(name, *outcomes):
    return Group(name, tuple(Trajectory(f"{name}-{i}", name, (), {"outcome": o}) for i, o in enumerate(outcomes)))


HALF = CurriculumRules(enabled=True, initial_percentile=0.5, increment_percentile=0.5, expansion_interval=2)
EPOCHS = [
    [[group("a", 0.0, 0.2), group("b", 0.6, 1.0)], [group("c", 0.3, 0.5), group("d", 0.7, 1.0)]],
    [[group("d", 0.0, 0.1), group("a", 0.8, 1.0)], [group("b", 0.5, 0.9), group("c", 0.2, 0.5)]],
]


def chosen(curriculum, epoch, step):
    groups, _ = curriculum.choose(EPOCHS[epoch][step], [], step=2 * epoch + step, epoch=epoch)
    return [g.example_id for g in groups]


def test_groups_are_ranked_among_the_examples_of_other_steps():
    curriculum = Curriculum(HALF, RunState(), TARGET, seed=7)
    assert chosen(curriculum, 0, 0) == ["b"]
    assert chosen(curriculum, 0, 1) == ["d"]  # of a 0.1, b 0.8, c 0.4, d 0.85 the easier half is d and b
    assert chosen(curriculum, 1, 0) == ["a"]  # now a 0.9, b 0.8: d is hard by what it earns today
    assert chosen(curriculum, 1, 1) == ["b"]  # of a 0.9, b 0.7, c 0.35, d 0.05


def test_a_step_of_easy_examples_trains_more_of_them_than_a_step_of_hard_ones():
    curriculum = Curriculum(HALF, RunState(), TARGET, seed=7)
    curriculum.choose([group("hard", 0.0, 0.2), group("harder", 0.0, 0.1)], [], step=0, epoch=0)
    kept, _ = curriculum.choose([group("easy", 0.8, 1.0), group("easier", 0.9, 1.1)], [], step=1, epoch=0)
    assert [g.example_id for g in kept] == ["easier", "easy"]


def test_what_the_curriculum_knows_is_resumed(tmp_path):
    store = RunStore.create(tmp_path / "run")
    state = RunState()
    whole = Curriculum(HALF, state, TARGET, seed=7)
    for step in range(2):
        chosen(whole, 0, step)
    store.commit(state)
    resumed_state = store.state()
    assert resumed_state.curriculum == state.curriculum
    resumed = Curriculum(HALF, resumed_state, TARGET, seed=7)
    for step in range(2):
        assert chosen(resumed, 1, step) == chosen(whole, 1, step)
    assert resumed_state.curriculum == state.curriculum
    assert chosen(Curriculum(HALF, RunState(), TARGET, seed=7), 1, 1) != []


def test_a_group_without_spread_is_left_out_and_forgotten():
    state = RunState()
    curriculum = Curriculum(HALF, state, TARGET, seed=7)
    curriculum.choose([group("a", 0.0, 1.0), group("b", 0.0, 1.0)], [], step=0, epoch=0)
    flat = Dropped("group", DropReason.FLAT_GROUP, "", "b")
    kept, left_out = curriculum.choose([group("a", 0.5, 0.55)], [flat], step=1, epoch=0)
    assert kept == []
    assert [(d.what, d.reason, d.example_id) for d in left_out] == [("group", DropReason.LOW_SPREAD, "a")]
    assert state.curriculum["difficulty"] == {}


def test_random_subsample_draws_rollouts_of_a_group_by_the_seed():
    rules = CurriculumRules(enabled=True, initial_percentile=1.0, random_subsample=0.5)
    outcomes = [n / 8 for n in range(8)]
    draws = [
        [
            t.rollout_id
            for t in Curriculum(rules, RunState(), TARGET, seed)
            .choose([group("a", *outcomes)], [], step=0, epoch=0)[0][0]
            .trajectories
        ]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 4
    _, left_out = Curriculum(rules, RunState(), TARGET, 1).choose([group("a", *outcomes)], [], step=0, epoch=0)
    assert {d.rollout_id for d in left_out} | set(draws[0]) == {f"a-{n}" for n in range(8)}


def test_a_draw_of_equal_rollouts_is_flat():
    rules = CurriculumRules(enabled=True, initial_percentile=1.0, random_subsample=0.5)
    kept, left_out = Curriculum(rules, RunState(), TARGET, 1).choose([group("a", 1.0, 1.0, 1.0, 0.0)], [], step=0, epoch=0)
    drawn = {d.rollout_id for d in left_out if d.what == "trajectory"}
    assert bool(kept) == ("a-3" not in drawn)
    assert any(d.reason is DropReason.FLAT_GROUP for d in left_out) == (not kept)


def test_components_that_tie_in_sum_are_spread_where_they_are_compared_apart():
    target = Target((), "policy", (RewardTerm("a"), RewardTerm("b")), rewards_apart=True)
    tied = Group("e", tuple(Trajectory(f"e-{n}", "e", (), {"a": float(n), "b": 1.0 - n}) for n in range(2)))
    kept, _ = Curriculum(HALF, RunState(), target, 7).choose([tied], [], step=0, epoch=0)
    assert kept == [tied]


# ------------------------------------------------------------------------------------------------------ dynamic sampling


def test_further_examples_are_outside_the_step_and_the_same_each_time():
    examples = [Example(n, "") for n in range(10)]
    step = Step(3, 0, tuple(examples[:4]))
    further = further_examples(examples, step, 7, 5)
    assert len(further) == 5
    assert not {e.id for e in further} & {0, 1, 2, 3}
    assert further == further_examples(examples, step, 7, 5)
    assert further != further_examples(examples, Step(4, 0, step.examples), 7, 5)
    assert len(further_examples(examples, step, 7, 50)) == 6
