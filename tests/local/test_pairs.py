from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from nat_finetune.errors import DataError
from nat_finetune.local.chat import ChatFormat
from nat_finetune.local.optimise import optimise
from nat_finetune.local.pair_objective import PairObjective
from nat_finetune.local.pair_rows import completion_ids, encode_pairs
from nat_finetune.local.settings import LoopSettings, LoraSettings, PreferenceSettings
from nat_finetune.types import DropReason
from tests.fixtures.models import ARCHITECTURES, tiny_model
from tests.fixtures.training import MESSAGES, learner_of, pair, plain_logprobs, tiny_policy

PAIRS = [
    pair("the quick brown fox", "o"),
    pair("lazy", "the quick brown fox", weight=0.5),
    pair("win", "lose", text="move 0 1 2 3"),
]


def run(learner, objective, **settings):
    return optimise(learner, objective, LoopSettings(**settings), seed=0, progress=lambda s: None, cancelled=lambda: False)


def objective_of(policy, pairs=PAIRS, **settings):
    return PairObjective(encode_pairs(pairs, policy.format, max_length=None), PreferenceSettings(**settings))


# ------------------------------------------------------------------------------------------------------------- the update


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_the_first_loss_is_ln_2(lora):
    with tiny_policy() as policy:
        curve = run(learner_of(policy, lora=lora, reference=True), objective_of(policy, [PAIRS[0], PAIRS[2]])).curve
    assert curve[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert curve[0]["margin"] == pytest.approx(0, abs=1e-5)
    assert curve[0]["pairs"] == 2


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)])
def test_the_reference_stays_where_training_began(lora):
    with tiny_policy() as policy:
        learner = learner_of(policy, lora=lora, reference=True)
        first, second = (run(learner, objective_of(policy), epochs=3).curve for _ in range(2))
        learner.weights.load({name: torch.zeros_like(value) for name, value in learner.weights.tensors().items()})
        with learner.reference.active():
            again = objective_of(policy, [PAIRS[0]])
            learner.scorer.score_into(again.rows, "now", again.rows.plans([(0, 1)], max_tokens=1000))
        untrained, _ = tiny_model("llama")
        plain = plain_logprobs(untrained, again.rows.token_ids_N[: again.rows.starts[1]].tolist(), 1)
    assert second[0]["margin"] > first[-1]["margin"] > first[0]["margin"] + 0.1  # not reset to 0
    scores = again.rows.columns["now"][: again.rows.starts[1]][again.rows.loss_mask_N[: again.rows.starts[1]]]
    torch.testing.assert_close(torch.from_numpy(scores), plain[-len(scores) :].detach(), atol=1e-5, rtol=0)


def test_one_step_equals_the_textbook():
    """AdamW on the mean of -w logsigmoid(beta ((pc - rc) - (pr - rr))), each sequence by itself, no batching."""
    with tiny_policy() as policy:
        learner = learner_of(policy, rate=1e-3, reference=True, max_grad_norm=1e9)
        rows = [[completion_ids(p.context, text, policy.format, where="") for text in (p.chosen, p.rejected)] for p in PAIRS]
        curve = run(learner, objective_of(policy, beta=0.3), max_tokens_per_microbatch=30).curve
        trained = {name: value.detach() for name, value in policy.model.named_parameters()}
    model, _ = tiny_model("llama")
    model.get_input_embeddings().padding_idx = None
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    total = torch.zeros(())
    for p, ((prompt, chosen), (_, rejected)) in zip(PAIRS, rows, strict=True):
        gap = torch.zeros(())
        for sign, completion in ((1, chosen), (-1, rejected)):
            logprob = plain_logprobs(model, (*prompt, *completion), len(prompt)).sum()
            gap = gap + sign * (logprob - logprob.detach())
        total = total - p.weight * logsigmoid(0.3 * gap) / len(PAIRS)
    total.backward()
    adam.step()
    assert curve[0]["loss"] == pytest.approx(total.item(), abs=1e-6)
    for name, value in model.named_parameters():
        if value.grad.abs().max() > 1e-6:  # AdamW turns the sign of rounding noise into a whole step
            moved = value.grad.abs() > 1e-5
            torch.testing.assert_close(trained[name][moved], value.detach()[moved], atol=2e-5, rtol=0)


def test_the_gradient_equals_the_textbook_for_every_loss(monkeypatch):
    for name in ("sigmoid", "sigmoid_norm", "ipo", "hinge"):
        with tiny_policy() as policy:
            learner, kept = learner_of(policy, reference=True), {}
            monkeypatch.setattr(
                learner.optimiser,
                "step",
                lambda kept=kept, learner=learner: (
                    kept.update({n: m.grad.clone() for n, m in learner.weights.masters.items()}) or {}
                ),
            )
            run(learner, objective_of(policy, PAIRS[:1], loss=name, beta=0.2))
            prompt, chosen = completion_ids(MESSAGES, PAIRS[0].chosen, policy.format, where="")
            _, rejected = completion_ids(MESSAGES, PAIRS[0].rejected, policy.format, where="")
        model, _ = tiny_model("llama")
        model.get_input_embeddings().padding_idx = None
        sides = [plain_logprobs(model, (*prompt, *c), len(prompt)) for c in (chosen, rejected)]
        policy_c, policy_r = (side.mean() if name in ("sigmoid_norm", "ipo") else side.sum() for side in sides)
        gap = (policy_c - policy_c.detach()) - (policy_r - policy_r.detach())
        loss = {
            "sigmoid": lambda g: -logsigmoid(0.2 * g),
            "sigmoid_norm": lambda g: -logsigmoid(0.2 * g),
            "ipo": lambda g: (g - 1 / 0.4) ** 2,
            "hinge": lambda g: torch.relu(1 - 0.2 * g),
        }[name](gap)
        loss.backward()
        for parameter, value in model.named_parameters():
            torch.testing.assert_close(kept[parameter], value.grad, atol=1e-5, rtol=1e-4, msg=f"{name}: {parameter}")


def test_weights_and_the_sft_term_count(monkeypatch):
    with tiny_policy() as policy:
        losses = [
            run(learner_of(policy, rate=1e-9, reference=True), objective_of(policy, pairs, **settings)).curve[0]
            for pairs, settings in (
                ([PAIRS[0]], {}),
                ([replace(PAIRS[0], weight=3.0)], {}),
                ([PAIRS[0]], {"sft_loss_weight": 1.0, "sft_average_log_probs": True}),
                ([PAIRS[0]], {"sft_loss_weight": 1.0, "preference_loss_weight": 0.0}),
            )
        ]
    plain, heavy, average, only = losses
    assert heavy["loss"] == pytest.approx(3 * plain["loss"], rel=1e-5)
    assert average["loss"] == pytest.approx(plain["loss"] + average["sft_loss"], rel=1e-5)
    assert only["loss"] == pytest.approx(-only["chosen_logprob"], rel=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_learns_a_preference(arch):
    with tiny_policy(arch) as policy:
        curve = run(
            learner_of(policy, lora=LoraSettings(rank=4), rate=3e-3, reference=True), objective_of(policy, PAIRS[::2]), epochs=5
        ).curve
    assert curve[-1]["margin"] > 0.2
    assert curve[-1]["accuracy"] == 1
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_a_candidate_in_many_pairs_is_read_once():
    texts = ["1", "2", "3", "4"]
    pairs = [pair(a, b) for a in texts for b in texts if a < b]
    with tiny_policy() as policy:
        rows = encode_pairs(pairs, policy.format, max_length=None)
        [plan] = rows.rows.plans([unit for units in rows.items for unit in units], max_tokens=10_000)
    assert len(rows.items) == 6
    assert len(rows.rows) == len(plan.trees) == 4
    assert rows.trained_tokens == 6 * 2 * 2  # digit and end of turn, for each side of each pair


# ------------------------------------------------------------------------------------------------------------- the tokens


@pytest.mark.parametrize("pad_is_eos", [False, True])
def test_a_text_is_trained_as_the_template_writes_it_up_to_the_end_of_turn(pad_is_eos):
    model, tokenizer = tiny_model("llama", pad_is_eos=pad_is_eos)
    chat = ChatFormat(tokenizer, model)
    prompt, completion = completion_ids(MESSAGES, "the fox", chat, where="")
    assert tokenizer.decode(prompt) == "<|im_start|>user\nmove 5<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(completion) == "the fox<|im_end|>"  # and not the newline after it


def test_sampled_ids_are_used_as_they_are():
    with tiny_policy() as policy:
        given = replace(PAIRS[0], prompt_ids=(5, 6), chosen_ids=(7,), rejected_ids=(8, 9))
        rows = encode_pairs([given], policy.format, max_length=None).rows
    assert rows.token_ids_N.tolist() == [5, 6, 7, 5, 6, 8, 9]
    assert rows.loss_mask_N.tolist() == [False, False, True, False, False, True, True]


def test_a_pair_that_is_too_long_is_dropped_and_counted():
    with tiny_policy() as policy:
        short = len(policy.format.render(MESSAGES)) + 2
        rows = encode_pairs([pair("1", "2"), pair("1", "zzz"), pair("zzz", "2")], policy.format, max_length=short)
    assert [(drop.what, drop.reason) for drop in rows.dropped] == [("pair", DropReason.TOO_LONG)] * 2
    assert rows.dropped[0].detail == f"{short + 2} tokens, max_length is {short}"
    assert len(rows.items) == 1


@pytest.mark.parametrize(
    ("template", "text", "message"),
    [
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}assistant:<think>{% endif %}",
            "fox",
            r"line 3, chosen: the chat template writes the finished conversation differently .* \(prompt: '<think>'",
        ),
        (
            "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}",
            "fox",
            "ends the assistant's turn without an end-of-turn token",
        ),
        (None, "fox<|im_end|>dog", "the text contains an end-of-turn token"),
    ],
)
def test_what_the_template_cannot_say_is_refused(template, text, message):
    model, tokenizer = tiny_model("llama")
    if template is not None:
        tokenizer.chat_template = template
    with pytest.raises(DataError, match=message):
        completion_ids(MESSAGES, text, ChatFormat(tokenizer, model), where="line 3, chosen")


def test_a_prompt_is_cut_from_the_left_alike_on_both_sides_and_a_completion_never():
    given = pair("win", "lose it all", text="move 0 1 2 3 4 5 6 7 8 9")
    with tiny_policy() as policy:
        whole = encode_pairs([given], policy.format, max_length=None)
        sides = [completion_ids(given.context, text, policy.format, where="") for text in (given.chosen, given.rejected)]
        longest = max(len(completion) for _, completion in sides)
        cut = encode_pairs([given], policy.format, max_length=longest + 5, truncate_prompts=True)
        none_left = encode_pairs([given], policy.format, max_length=longest, truncate_prompts=True)
    prompt = sides[0][0]
    ids = [cut.rows.token_ids_N[cut.rows.starts[row] : cut.rows.starts[row + 1]].tolist() for row in (0, 1)]
    assert ids == [[*prompt[-5:], *completion] for _, completion in sides]
    assert cut.trained_tokens == whole.trained_tokens
    assert (cut.truncated, whole.truncated, none_left.truncated) == (1, 0, 0)
    assert [drop.reason for drop in none_left.dropped] == [DropReason.TOO_LONG]
