"""Exact expectations against games that are played, and against figures derived by hand."""

from __future__ import annotations

import random

import pytest
from nat_finetune_workflows.tic_tac_toe import expected, game, solver


def skewed(board: str) -> dict[int, float]:
    """A policy with illegal mass: 0.9 in all, more on later squares."""
    moves = game.legal_moves(board)
    return {square: 0.9 * (square + 1) / sum(move + 1 for move in moves) for square in moves}


def win_or_block(board: str) -> dict[int, float]:
    moves = game.legal_moves(board)
    side = game.to_move(board)
    for who in (side, game.other(side)):
        found = [square for square in moves if game.winner(board[:square] + who + board[square + 1 :]) == who]
        if found:
            return dict.fromkeys(found, 1 / len(found))
    return dict.fromkeys(moves, 1 / len(moves))


def played(opening: str, side: str, policy, games: int, seed: int) -> float:
    """Mean outcome of games that are drawn at random."""
    draw = random.Random(seed)
    total = 0.0
    for _ in range(games):
        board = opening
        while not game.is_over(board):
            chances = policy(board) if game.to_move(board) == side else expected.uniform(board)
            square = draw.choices([*chances, None], [*chances.values(), max(0.0, 1 - sum(chances.values()))])[0]
            if square is None:
                break
            board = game.play(board, square)
        else:
            total += solver.result(board, side)
    return total / games


@pytest.mark.parametrize(("opening", "side"), [("." * 9, "X"), ("." * 9, "O"), ("X...O....", "O")])
def test_the_expectation_is_what_games_come_to(opening, side):
    exact = expected.outcomes(opening, side, skewed)
    assert exact.won + exact.drawn + exact.lost + exact.illegal == pytest.approx(1.0)
    assert exact.score == pytest.approx(played(opening, side, skewed, games=20_000, seed=1), abs=0.015)  # 4 standard errors


def test_an_ending_by_hand():
    board = "XOXOX.OX."  # O to move: 5 and 8 are free; X then takes the other one
    assert solver.move_values(board) == {5: 0.0, 8: 0.5}
    ends = expected.outcomes(board, "O", {board: {5: 0.25, 8: 0.5, 0: 0.125}})
    assert (ends.won, ends.drawn, ends.lost, ends.illegal) == (0.0, 0.5, 0.25, 0.25)
    assert expected.visits(board, "O", {board: {5: 0.25, 8: 0.5}}) == {board: 1.0}
    assert expected.best_score(board, "O") == 0.5


def test_uniform_play_from_the_start_has_the_known_odds():
    ends = expected.outcomes(game.START, "X", expected.uniform)
    assert [ends.won, ends.lost, ends.drawn] == pytest.approx([737 / 1260, 121 / 420, 8 / 63])
    assert ends.illegal == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("side", game.SIDES)
def test_nothing_beats_the_best_response(side):
    best = expected.best_score(game.START, side)
    assert expected.outcomes(game.START, side, expected.best_response(side)).score == pytest.approx(best)
    optimal = expected.outcomes(game.START, side, lambda b: dict.fromkeys(solver.optimal_moves(b)[:1], 1.0)).score
    assert expected.outcomes(game.START, side, expected.uniform).score < optimal <= best


def test_openings_of_three_plies_leave_room_to_learn():
    """The two ends of the scale on which the demo is judged, over the 54 openings and both sides."""
    openings = sorted({game.canonical(board) for board in game.positions() if board.count(".") >= 6})
    games = [(board, side) for board in openings for side in game.SIDES]
    assert len(openings) == 54
    mean = [
        sum(score(*each) for each in games) / len(games)
        for score in (lambda board, side: expected.outcomes(board, side, expected.uniform).score, expected.best_score)
    ]
    assert mean == pytest.approx([0.5, 0.9460], abs=1e-4)


def test_critical_positions_set_the_scale_of_critical_rate():
    critical = [board for board in game.positions() if solver.is_critical(board)]

    def rate(policy, boards) -> float:
        return sum(sum(policy(b).get(square, 0.0) for square in solver.optimal_moves(b)) for b in boards) / len(boards)

    assert len(critical) == 3191
    assert rate(expected.uniform, critical) == pytest.approx(0.4046, abs=1e-4)
    assert rate(win_or_block, critical) == pytest.approx(0.9143, abs=1e-4)
    without_win = [b for b in critical if all(game.winner(game.play(b, square)) is None for square in game.legal_moves(b))]
    assert rate(win_or_block, without_win) == pytest.approx(0.7876, abs=1e-4)


def test_visits_follow_the_policy():
    met = expected.visits("X........", "O", skewed)
    assert met["X........"] == 1.0
    per_turn = {marks: sum(p for b, p in met.items() if 9 - b.count(".") == marks) for marks in (1, 3)}
    assert per_turn == pytest.approx({1: 1.0, 3: 0.9})  # no game ends before the second turn, save by an illegal answer
    assert set(met) <= set(expected.policy_states([("X........", "O")]))


def test_unseen_share_looks_past_symmetry():
    visited = {"X........": 3.0, "....X....": 1.0}
    assert expected.unseen_share(visited, ["..X......"]) == 0.25
    assert expected.unseen_share({}, ["..X......"]) is None


def test_every_board_a_policy_may_meet_is_listed_once():
    both = expected.policy_states([(game.START, "X"), (game.START, "O")])
    assert len(both) == len(set(both)) == 4520
    assert {game.to_move(b) for b in expected.policy_states([(game.START, "O")])} == {"O"}


@pytest.mark.parametrize("answer", [{0: 1.1}, {0: -0.1}, {9: 0.5}, [float("nan")] * 9, [0.2] * 9], ids=str)
def test_what_is_no_distribution_is_refused(answer):
    with pytest.raises(ValueError, match="sum to at most 1"):
        expected.legal_probs({game.START: answer}, game.START)


def test_a_policy_without_an_answer_is_refused():
    with pytest.raises(ValueError, match=r"no probabilities for '\.\.\.\.\.\.\.\.\.'"):
        expected.outcomes(game.START, "X", {})
