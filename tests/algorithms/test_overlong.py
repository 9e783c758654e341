"""The soft overlong penalty: where it starts, where it ends, and that it is monotone."""

import pytest
import torch

from nat_finetune.algorithms.overlong import soft_overlong_penalty
from nat_finetune.errors import ConfigError


def test_nothing_before_the_buffer_everything_at_the_limit_no_further_beyond() -> None:
    penalties = soft_overlong_penalty(torch.tensor([0, 80, 85, 100, 1000]), max_length=100, buffer=20, penalty=2.0)
    assert penalties.tolist() == [0.0, 0.0, -0.5, -2.0, -2.0]


def test_a_longer_answer_never_pays_less() -> None:
    penalties = soft_overlong_penalty(torch.arange(200), max_length=100, buffer=33, penalty=1.0)
    assert (penalties.diff() <= 0).all()


@pytest.mark.parametrize(("buffer", "penalty"), [(0, 1.0), (101, 1.0), (10, -1.0), (10, float("nan"))])
def test_impossible_numbers_are_refused(buffer: int, penalty: float) -> None:
    with pytest.raises(ConfigError):
        soft_overlong_penalty(torch.zeros(1), max_length=100, buffer=buffer, penalty=penalty)
