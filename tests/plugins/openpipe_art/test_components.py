"""Builder and trainer keep the promises of their interfaces."""

import pytest
from nat_finetune_plugins.openpipe_art.components import ArtTrajBuilder
from nat_finetune_plugins.openpipe_art.config import ArtTrainerConfig, ArtTrajBuilderConfig

from nat_finetune.interfaces import Built
from nat_finetune.testing.conformance import check_builder, check_trainer
from nat_finetune.testing.parts import TARGET
from nat_finetune.types import Dropped, DropReason


@pytest.mark.parametrize("generations", [2, 4])
def test_the_builder_is_one(generations):
    assert check_builder(ArtTrajBuilderConfig(num_generations=generations))


def test_the_trainer_is_one():
    assert check_trainer(ArtTrainerConfig())


def test_groups_that_could_not_be_made_are_warned_of():
    built = Built(0, (), (Dropped("group", DropReason.TOO_FEW_ROLLOUTS),))
    assert "fewer than two usable rollouts" in ArtTrajBuilder(ArtTrajBuilderConfig(), TARGET).warnings(built)[0]
