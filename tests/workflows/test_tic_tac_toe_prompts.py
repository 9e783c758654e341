"""What a model is shown and what its answer is taken for."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from nat_finetune_workflows.tic_tac_toe import game, prompts, solver

PLAYED = [board for board in game.positions() if not game.is_over(board)]


def test_free_squares_are_shown_by_number():
    assert prompts.tiny_prompt("X...O....") == "+1 2 3 4 -5 6 7 8 9"
    assert prompts.tiny_prompt("X...O...X") == "-1 2 3 4 +5 6 7 8 -9"  # O moves: its marks are the own ones
    assert prompts.chat_prompt("X...O...X") == "O to move | X 2 3 4 O 6 7 8 X | free: 2 3 4 6 7 8"


@pytest.mark.parametrize("style", ["tiny", "chat"])
def test_no_two_positions_look_alike(style):
    shown = {prompts.messages(board, style)[-1]["content"] for board in PLAYED}
    assert len(shown) == len(PLAYED) == 4520


def test_an_answer_means_the_square_it_was_written_for():
    for board in PLAYED:
        for square in game.legal_moves(board):
            assert prompts.parse_answer(prompts.answer_text(square), board) == prompts.Answer(square)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unparsable"),
        ("two", "unparsable"),
        ("2.", "unparsable"),
        ("2 3", "unparsable"),
        ("-2", "unparsable"),
        ("+2", "unparsable"),
        ("2\n3", "unparsable"),
        ("²", "unparsable"),
        ("٢", "unparsable"),  # a digit to Python, and no number that the board shows
        ("9" * 5000, "unparsable"),  # longer than int() takes
        ("0", "out of range"),
        ("10", "out of range"),
        ("1", "occupied"),
        ("5", "occupied"),
    ],
)
def test_what_is_no_legal_move_says_why(text, problem):
    assert prompts.parse_answer(text, "X...O....") == prompts.Answer(None, problem)


@pytest.mark.parametrize("text", ["2", " 2", "2\n", "\t2 ", "02"])
def test_white_space_around_the_number_is_no_fault(text):
    assert prompts.parse_answer(text, "X...O....") == prompts.Answer(1)


def test_a_finished_game_is_not_asked_about():
    with pytest.raises(ValueError, match="has ended"):
        prompts.messages("XXXOO....", "tiny")


def test_chat_shows_each_example_with_its_answer_before_the_question():
    asked = prompts.messages(game.START, "chat")
    assert [message["role"] for message in asked] == ["system", *["user", "assistant"] * 3, "user"]
    assert [message["content"] for message in asked[2:-1:2]] == ["3", "9", "5"]


def test_chat_examples_are_training_positions_with_one_best_move():
    train = resources.files("nat_finetune_workflows.tic_tac_toe") / "data" / "move_train.jsonl"
    keys = {json.loads(line)["task_key"] for line in train.read_text(encoding="utf-8").splitlines()}
    for board, square in prompts.EXAMPLES:
        assert game.canonical(game.check(board)) in keys, "a held-out position is given away in the prompt"
        assert solver.optimal_moves(board) == (square,)
