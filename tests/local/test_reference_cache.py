"""The reference is asked once about the same rows: kept on disk, and never taken for another model's, adapter's or pairs'."""

import pytest
import torch

from nat_finetune.local.learner import make_learner
from nat_finetune.local.optimise import optimise
from nat_finetune.local.pair_objective import REFERENCE, PairObjective
from nat_finetune.local.pair_rows import encode_pairs
from nat_finetune.local.settings import LoopSettings, LoraSettings, OptimiserSettings, PreferenceSettings
from tests.fixtures.training import pair, tiny_policy

PAIRS = [pair("the quick brown fox", "o"), pair("win", "lose", text="move 0 1 2 3")]


def update(policy, folder, *, pairs=PAIRS, lora=None, held=None):
    """One update in a process of its own; the learner, and the rows with what the reference said."""
    learner = make_learner(policy, OptimiserSettings(1e-3), lora=lora, needs_reference=True, seed=0, folder=folder)
    if held is not None:
        with torch.no_grad():
            next(iter(learner.weights.by_name.values())).add_(held)
        learner.reference.hold(1)
    objective = PairObjective(encode_pairs(pairs, policy.format, max_length=None), PreferenceSettings())
    optimise(learner, objective, LoopSettings(), seed=0, progress=lambda s: None, cancelled=lambda: False)
    return learner.reference_cache, objective.rows.columns[REFERENCE]


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_the_same_pairs_are_asked_once(tmp_path, lora):
    values = []
    for hits in (0, 1):
        with tiny_policy() as policy:
            policy.digest = "as loaded"
            cache, found = update(policy, tmp_path, lora=lora)
        assert (cache.hits, cache.misses) == (hits, 1 - hits)
        values.append(found.tolist())
    assert values[0] == values[1]
    assert any(values[0])


def test_another_model_another_reference_or_other_pairs_miss(tmp_path):
    def asked(**changes):
        digest = changes.pop("digest", "as loaded")
        with tiny_policy() as policy:
            policy.digest = digest
            return update(policy, tmp_path, **changes)[0].misses == 1

    assert asked()
    assert not asked()
    assert asked(digest="another")
    assert asked()  # only those of the last rows are kept
    assert asked(held=0.1)
    assert asked(held=0.2)
    assert asked(pairs=[*PAIRS, pair("lazy", "o")])


def test_a_file_that_a_crash_cut_off_is_computed_again(tmp_path):
    with tiny_policy() as policy:
        _, whole = update(policy, tmp_path)
    (path,) = (tmp_path / "reference").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    with tiny_policy() as policy:
        cache, again = update(policy, tmp_path)
    assert cache.misses == 1
    assert again.tolist() == whole.tolist()


def test_without_a_folder_nothing_is_kept():
    with tiny_policy() as policy:
        cache, _ = update(policy, None)
    assert cache.misses == 1
