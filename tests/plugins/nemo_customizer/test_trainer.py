"""NAT's trainer: passes, one job, and the end of the run where the job is not waited for."""

import pytest
from nat_finetune_plugins.nemo_customizer.components import NeMoCustomizerTrainerConfig

from nat_finetune.testing import FakeBuilder, FakeTrainingRun, made
from nat_finetune.testing.conformance import check_trainer


@pytest.mark.parametrize("config", [NeMoCustomizerTrainerConfig(), NeMoCustomizerTrainerConfig(num_runs=3, max_pairs=2)])
def test_it_conforms(config):
    assert check_trainer(config)


async def test_a_job_that_is_not_waited_for_ends_the_run():
    run = FakeTrainingRun("pair")
    async with made(NeMoCustomizerTrainerConfig(wait_for_completion=False, num_runs=2), FakeBuilder()) as trainer:
        await trainer.train(run)
    assert ("update", 1, False, "not waited for") in run.orders
    assert [order[0] for order in run.orders][:4] == ["collect", "collect", "build", "select"]
    assert NeMoCustomizerTrainerConfig(wait_for_completion=False).detaches()
