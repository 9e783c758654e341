"""Task families of reasoning-gym as dataset and scorer; skipped where the library is not installed."""

import sys
from types import SimpleNamespace

import pytest
from nat_finetune_plugins.reasoning_gym.components import (
    ReasoningGymConfig,
    ReasoningGymDatasetConfig,
    reasoning_gym,
    reasoning_gym_dataset,
)

from nat_finetune.errors import ConfigError, DataError, InfrastructureFailure
from nat_finetune.types import Example, Rollout

BUILDER = SimpleNamespace(entry_name="eval.general.dataset")
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


async def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigError, match=r"nat-finetune\[reasoning-gym\]"):
        await load(family="chain_sum", size=1)


async def load(**config):
    async for loader in reasoning_gym_dataset(ReasoningGymDatasetConfig(**config), BUILDER):
        return list(loader.load())


async def score(example, answer):
    async for evaluate in reasoning_gym(ReasoningGymConfig(), SimpleNamespace(entry_name="correct")):
        return (await evaluate(example, Rollout("r", example.id, 0, 0, (), output=answer))).value


@pytest.fixture
def _library():
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("family", ["chain_sum", "countdown", "spell_backward", "propositional_logic"])
async def test_gold_answers_score_highest_and_none_lowest(family):
    examples = await load(family=family, size=5)
    assert [await score(e, e.target) for e in examples if e.target is not None] == [1.0] * sum(
        e.target is not None for e in examples
    )
    assert [await score(e, None) for e in examples] == [0.0] * 5


@pytest.mark.usefixtures("_library")
async def test_parts_share_no_question_whatever_the_seeds():
    train = await load(family="chain_sum", size=60, settings=SUMS, part="train")
    test = await load(family="chain_sum", size=20, settings=SUMS, part="test", seed=1)
    assert len({e.input for e in train}) == 60
    assert not {e.input for e in train} & {e.input for e in test}
    assert await load(family="chain_sum", size=60, settings=SUMS, part="train") == train


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"family": "chain_sun"}, "no family 'chain_sun' .*chain_sum"),
        ({"family": "chain_sum", "settings": {"min_term": 2}}, "no setting 'min_term' .*min_terms"),
        ({"family": "chain_sum", "settings": {"min_terms": 0}}, "refuses its settings"),
    ],
)
async def test_errors_name_what_is_wrong(config, words):
    with pytest.raises(ConfigError, match=words):
        await load(size=3, **config)


@pytest.mark.usefixtures("_library")
async def test_a_family_that_is_too_small_says_so():
    with pytest.raises(DataError, match="different questions of part all"):
        await load(family="chain_sum", size=300, settings=SUMS)


@pytest.mark.usefixtures("_library")
async def test_examples_of_other_origin_are_unknown():
    with pytest.raises(InfrastructureFailure, match="is no task of the dataset"):
        await score(Example(1, "2 + 2", "4"), "4")
    (example,) = await load(family="chain_sum", size=1)
    with pytest.raises(InfrastructureFailure, match="another task"):
        await score(Example(1, "other", metadata=example.metadata), "4")
