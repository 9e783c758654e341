"""The shipped policy, loaded from its folder by plain transformers: knows the format, knows nothing of the game."""

from __future__ import annotations

import hashlib
import math
import re
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from nat_finetune_workflows.tic_tac_toe import build_policy, game, solver
from nat_finetune_workflows.tic_tac_toe.prompts import answer_text, messages, parse_answer
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = Path(str(files("nat_finetune_workflows.tic_tac_toe.policy")))
BOARDS = [board for board in game.positions() if not game.is_over(board)]
CLASSES = sorted({game.canonical(board) for board in BOARDS})


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def prompts_N_T(tokenizer):
    return torch.tensor([prompt_ids(tokenizer, board) for board in BOARDS])


@pytest.fixture(scope="module")
def answers(tokenizer):
    """By board (one for each class of symmetric ones) and square, the probability of the two tokens that answer with it."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER).eval()
    prompts_N_T = torch.tensor([prompt_ids(tokenizer, board) for board in CLASSES])
    numbers = torch.tensor([tokenizer.encode(answer_text(square))[0] for square in range(9)])
    with torch.no_grad():
        probs_N_S = model(prompts_N_T, logits_to_keep=1).logits[:, -1].softmax(-1)[:, numbers]
        ends = [
            model(torch.cat([prompts_N_T, number.expand(len(prompts_N_T), 1)], dim=1), logits_to_keep=1).logits[:, -1]
            for number in numbers
        ]
    ends_N_S = torch.stack([logits_N_V.softmax(-1)[:, tokenizer.eos_token_id] for logits_N_V in ends], dim=1)
    return dict(zip(CLASSES, (probs_N_S * ends_N_S).tolist(), strict=True))


def prompt_ids(tokenizer, board: str) -> list[int]:
    return tokenizer.apply_chat_template(messages(board, "tiny"), add_generation_prompt=True, return_dict=True)["input_ids"]


def legal_answers(answers, board: str) -> list[float]:
    return [answers[board][square] for square in game.legal_moves(board)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_it_is_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 3 * 2**20


def test_the_readme_names_the_bits():
    named = dict(re.findall(r"^\| `([\w.]+)` \| `([0-9a-f]{64})` \|$", (FOLDER / "README.md").read_text(), flags=re.MULTILINE))
    assert named == {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in named}
    assert {"model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"} <= named.keys()


def test_prompts_are_short_and_have_no_unknown_word(tokenizer, prompts_N_T):
    assert tokenizer.decode(prompt_ids(tokenizer, "X...O....")) == "<user> +1 2 3 4 -5 6 7 8 9 <assistant>"
    assert prompts_N_T.shape == (4520, 11)
    assert tokenizer.unk_token_id not in prompts_N_T
    assert len({tuple(row) for row in prompts_N_T.tolist()}) == 4520, "two positions with one prompt"


def test_an_answer_is_one_token_that_reads_back(tokenizer):
    for square in range(9):
        ids = tokenizer.encode(answer_text(square))
        assert len(ids) == 1
        assert (
            parse_answer(tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True), game.START).square
            == square
        )
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3


def test_mostly_legal(answers):
    legal = {board: sum(legal_answers(answers, board)) for board in CLASSES}
    assert 0.95 <= mean(list(legal.values())) <= 0.99
    assert min(legal.values()) > 0.9


def test_plays_at_random(answers):
    """Entropy among legal moves is nearly that of uniform play, and the best moves are found as rarely as by chance."""
    ratios = []
    for board in CLASSES:
        legal = legal_answers(answers, board)
        if len(legal) > 1:
            ratios.append(-sum(p / sum(legal) * math.log(p / sum(legal)) for p in legal) / math.log(len(legal)))
    assert mean(ratios) > 0.99
    critical = [board for board in CLASSES if solver.is_critical(board)]
    found = mean([sum(answers[board][square] for square in solver.optimal_moves(board)) for board in critical])
    chance = mean([len(solver.optimal_moves(board)) / len(game.legal_moves(board)) for board in critical])
    assert chance == pytest.approx(0.402, abs=0.001)
    assert chance - 0.03 < found < chance + 0.01


def test_the_script_makes_the_shipped_tokenizer(tmp_path):
    build_policy.make_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.slow
def test_the_script_makes_the_shipped_weights(tmp_path):
    """To within rounding, which differs between processors; on the one that built it the files are equal."""
    torch_was_deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        build_policy.main(tmp_path)
    finally:
        torch.use_deterministic_algorithms(torch_was_deterministic)
    rebuilt, shipped = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (tmp_path, FOLDER))
    assert rebuilt.keys() == shipped.keys()
    for name in shipped:
        torch.testing.assert_close(rebuilt[name], shipped[name], atol=1e-2, rtol=0)
