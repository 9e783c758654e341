"""The trainer's scores against whole logits of single sequences, also for models that bend their logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.cohere.configuration_cohere import CohereConfig
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
from transformers.models.granite.configuration_granite import GraniteConfig

from nat_finetune.data.batches import Rows
from nat_finetune.local.scores import TEMPERATURE, TrainerScorer
from nat_finetune.local.weights import TrainedWeights
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.fixtures.training import plain_logprobs, tiny_policy

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
    "pad_token_id": 0,
}
SEQUENCES = ([5, 6, 7, 8], [5, 6, 7, 9, 11, 3], [12])


def scored(model, *, temperature=0.8):
    ids = [[1, *sequence] for sequence in SEQUENCES]
    rows = Rows.of(ids, [[0] + [1] * len(sequence) for sequence in SEQUENCES])
    rows.columns[TEMPERATURE] = np.full(len(rows.token_ids_N), temperature, np.float32)
    TrainerScorer(model).score_into(rows, "scores", rows.plans([(0,), (1,), (2,)], max_tokens=1000))
    expected = torch.cat([plain_logprobs(model, row, 1, temperature=temperature) for row in ids])
    return torch.from_numpy(rows.columns["scores"][rows.loss_mask_N]), expected.detach()


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_scores_are_those_of_the_model(arch):
    torch.testing.assert_close(*scored(tiny_model(arch)[0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "config",
    [
        Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=2.0, sliding_window=4),
        CohereConfig(**SMALL, logit_scale=0.25),
        GraniteConfig(**SMALL, logits_scaling=4.0),
    ],
    ids=lambda config: config.model_type,
)
def test_logits_that_a_model_bends_are_bent_here_too(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    found, expected = scored(model)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    plain = model.get_output_embeddings()(model.get_decoder()(torch.tensor([[1, *SEQUENCES[0]]])).last_hidden_state)
    unbent = (plain[0, :-1] / 0.8).log_softmax(-1)[range(4), SEQUENCES[0]]
    assert (unbent - expected[:4]).abs().max() > 0.05  # the bend shows


def test_gradients_of_a_narrow_model_add_up_in_float32():
    model, _ = tiny_model("llama")
    model.bfloat16()
    weights = TrainedWeights(model)
    name = "lm_head.weight"
    parameter = model.get_parameter(name)
    for value in (1.0, 1e-3, 1e-3):
        parameter.grad = torch.full_like(parameter, value)
        weights.collect_gradients()
        assert parameter.grad is None
    found = weights.masters[name].grad
    assert found.dtype == torch.float32
    assert found.flatten()[0].item() == pytest.approx(1.002, abs=1e-5)  # bf16 would have kept 1
    weights.clear_gradients()
    assert weights.masters[name].grad is None


@pytest.fixture
def uninitialised_is_nan():
    """Memory that nothing is written to shows: a gradient of 0 times NaN is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_reading_beginnings_once_changes_no_score_and_no_gradient(arch, uninitialised_is_nan):
    begin = [5, 6, 7, 8, 9, 4, 3, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]  # longer than the sliding windows
    ids = [[*begin, 30, 31], [*begin, 40, 32], [*begin[:12], 33, *begin, 34], [*begin[:14], 37, 35], [*begin[:15], 36]]
    rows = Rows.of(ids, [[0] * 9 + [1] * (len(row) - 9) for row in ids])
    rows.columns[TEMPERATURE] = np.ones(len(rows.token_ids_N), np.float32)
    found = {}
    with tiny_policy(arch) as policy:
        scorer = TrainerScorer(policy.model)
        for tree_tokens, multiple in ((0, 0), (scorer.tree_tokens, 0), (scorer.tree_tokens, 1), (scorer.tree_tokens, 32)):
            how = {"tree_tokens": tree_tokens, "packed": multiple > 0, "multiple": max(1, multiple)}
            [plan] = rows.plans([(row,) for row in range(5)], max_tokens=1000, **how)
            batch = rows.micro_batch(plan, scorer.device)
            logprobs = scorer.scores(batch).logprobs_B_T
            order = np.argsort(batch.rows)
            logprobs.sin().sum().backward()
            grads = {name: value.grad.clone() for name, value in policy.model.named_parameters()}
            policy.model.zero_grad()
            found[tree_tokens, multiple] = (logprobs.detach()[order], grads, batch.input_ids_L_T.shape)
    (apart, plain, read_apart), *others = found.values()
    assert read_apart == (4, 32)
    read = 19 + 1 + 1 + 1 + 20  # the beginning once, and what each row adds
    assert [shape for *_, shape in others] == [(1, read), (1, read), (1, 64)]  # the last filled up at its end
    for together, shared, _ in others:
        torch.testing.assert_close(together, apart, atol=1e-5, rtol=0)
        for name, gradient in plain.items():
            torch.testing.assert_close(shared[name], gradient, atol=2e-4, rtol=1e-4)
