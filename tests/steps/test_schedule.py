"""Where a step stands in its run, and after which ones the validation set is looked at."""

import pytest

from nat_finetune.config.schema import FinetuningConfig, ValidationConfig
from nat_finetune.steps.schedule import EpochSchedule, RoundSchedule
from nat_finetune.types import Example

EXAMPLES = [Example(id=i, input=f"question {i}") for i in range(5)]


def config(validation=None, **settings):
    given = (
        None
        if validation is None
        else ValidationConfig.model_construct(**{"interval": 5, "interval_steps": None, **validation})
    )
    return FinetuningConfig(**settings).model_copy(update={"validation": given})


def test_an_epoch_is_every_example_once_in_an_order_of_its_own():
    schedule = EpochSchedule(config(num_epochs=2, examples_per_step=2, seed=4), EXAMPLES)
    steps = [schedule.step(index) for index in range(schedule.total)]
    assert [len(step.examples) for step in steps] == [2, 2, 1, 2, 2, 1]
    assert [step.last_of_epoch for step in steps] == [False, False, True, False, False, True]
    epochs = [[e.id for step in steps if step.epoch == epoch for e in step.examples] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == [0, 1, 2, 3, 4]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("validation", "expected"),
    [
        (None, []),
        ({"interval": 2}, [5, 11, 14]),  # the ends of epochs 2 and 4, and the last step
        ({"interval": 5, "interval_steps": 4}, [3, 7, 11, 14]),
        ({"interval": 1}, [2, 5, 8, 11, 14]),
    ],
)
def test_after_which_steps_the_validation_set_is_looked_at(validation, expected):
    schedule = EpochSchedule(config(validation, num_epochs=5, examples_per_step=2), EXAMPLES)
    assert [index for index in range(schedule.total) if schedule.step(index).validated] == expected


def test_the_first_update_of_a_round_has_the_number_of_its_last_pass():
    schedule = RoundSchedule(config({"interval": 2}, num_epochs=3), EXAMPLES, passes=2, rounds=2)
    rounds = list(schedule.rounds())
    assert [[step.index for step in r.passes] for r in rounds] == [[0, 1], [4, 5]]
    assert [[step.index for step in r.updates] for r in rounds] == [[1, 2, 3], [5, 6, 7]]
    assert [[step.validated for step in r.updates] for r in rounds] == [[False, True, True], [True, False, True]]
    assert schedule.total == 8
    assert all(step.examples == tuple(EXAMPLES) for r in rounds for step in (*r.passes, *r.updates))


def test_warm_ups_come_before_the_first_updates_only():
    schedule = RoundSchedule(config({"interval": 9}, num_epochs=2), EXAMPLES, passes=1, rounds=2, warm_ups=2)
    first, second = schedule.rounds()
    assert [step.index for step in (*first.passes, *first.warm_ups, *first.updates)] == [0, 0, 1, 2, 3]
    assert [step.index for step in (*second.passes, *second.warm_ups, *second.updates)] == [4, 4, 5]
    assert [step.epoch for step in (*first.warm_ups, *first.updates, *second.updates)] == [0, 1, 2, 3, 4, 5]
    assert [step.index for r in (first, second) for step in (*r.warm_ups, *r.updates) if step.validated] == [3, 5]
    assert schedule.total == 6
