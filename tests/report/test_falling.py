"""The warning about chosen completions that become less probable."""

import pytest

from nat_finetune.report.preferences import falling_warning


@pytest.mark.parametrize(
    ("curve", "warned"),
    [
        ([], False),
        ([{"loss": 1.0}], False),  # groups have no chosen side
        ([{"chosen_logratio": -5.0}, {"chosen_logratio": 0.2}], False),
        ([{"chosen_logratio": 0.0}, {"chosen_logratio": -1.0}], False),
        ([{"chosen_logratio": 0.0}, {"chosen_logratio": -1.5}], True),
    ],
)
def test_the_end_of_the_update_decides(curve, warned):
    message = falling_warning(curve)
    assert (message is not None) == warned
    if warned:
        assert "less probable than under the reference, by more than 1 nat" in message
