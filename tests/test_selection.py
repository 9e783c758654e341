"""How long a run goes on with nothing to train on, and how it ends."""

import pytest

from nat_finetune.config.schema import FinetuningConfig
from nat_finetune.runstore import RunState
from nat_finetune.selection import Ending, SignalWatch
from nat_finetune.types import Group, Trajectory
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
