"""Rewards that can't be learned from, through the command line: what the run says of them, and its exit code."""

import json

import pytest

from nat_finetune.cli.main import main
from tests.e2e.test_bad_inputs import NOUNS, folder, report, run  # noqa: F401 (a fixture)

ADJECTIVES = ("red", "tall", "wet", "old", "loud", "thin")
SOUND = "eval.evaluators.score={_type: suspect, mode: sound}"
FLAT = (
    "score is 0 for all 12 scored rollouts",
    "[score 0] example",
    "1. the evaluator: gold answers must score",
    "no example has a gold answer",
)


@pytest.fixture
def rows(folder):  # noqa: F811
    """Data whose splits share nothing; `answered` gives each row an answer."""

    def write(*, answered):
        for name, nouns in NOUNS.items():
            lines = []
            for n, noun in enumerate(nouns):
                row = {"id": f"{name}{n}", "question": f"{noun} {noun[::-1]} {ADJECTIVES[n]}"}
                lines.append(json.dumps({**row, "answer": f"{noun}!"} if answered else row) + "\n")
            (folder / f"{name}.jsonl").write_text("".join(lines))
        return folder

    return write


def said(capsys):
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return told.err + told.out


def test_always_zero_without_answers_is_no_signal(rows, capsys):
    made = rows(answered=False)
    assert run("eval.evaluators.score={_type: suspect, mode: zero}") == 4
    text = said(capsys)
    for part in FLAT:
        assert part in text
    assert report(made)["exit_reason"] == "NoTrainableSignal"


def test_always_one_without_answers_has_nothing_left_to_learn(rows, capsys):
    made = rows(answered=False)
    assert run("eval.evaluators.score={_type: suspect, mode: one}", "finetuning.num_epochs=2") == 0
    assert "nothing left to learn: every rollout scored the evaluator's maximum (score 1)" in said(capsys)
    assert report(made)["exit_reason"] == "nothing left to learn"
    assert len(report(made)["steps"]) == 2  # an epoch


def test_a_flaky_evaluator_is_no_signal_and_the_step_is_collected_anew(rows, capsys):
    made = rows(answered=False)
    assert run("eval.evaluators.score={_type: suspect, mode: flaky}") == 4
    text = said(capsys)
    assert "rollouts have no score" in text
    assert "ConnectionError: evaluator score: the judge is away" in text
    (config,) = made.glob("runs/*/config.yml")
    config.write_text(config.read_text().replace("mode: flaky", "mode: length"))
    assert main(["run", "--resume", str(config.parent)]) == 0


@pytest.mark.parametrize(
    ("mode", "finding"),
    [
        ("zero", "6 of 6 gold answers score less than the maximum 1"),
        ("one", "none of 24 corrupted answers scores less than its gold answer"),
        ("length", "gold answers score less than the maximum"),
    ],
)
def test_answers_show_it_before_a_rollout_is_paid_for(rows, capsys, mode, finding):
    made = rows(answered=True)
    assert run(f"eval.evaluators.score={{_type: suspect, mode: {mode}}}") == 4
    assert finding in said(capsys)
    assert not list(made.glob("runs/*/events.jsonl"))
    assert report(made)["exit_reason"] == "UntrustedReward"


def test_a_failed_calibration_may_be_a_warning(rows, capsys):
    made = rows(answered=True)
    assert run("eval.evaluators.score={_type: suspect, mode: length}", "finetuning.calibration.on_problem=warn") == 0
    assert any("the reward fails on known answers" in text for text in report(made)["warnings"])
    assert any("gold answers of 6 examples scored" in text for text in report(made)["account"])


def test_a_column_of_bad_answers_that_no_example_has_is_an_error(rows, capsys):
    rows(answered=True)
    assert run("finetuning.calibration.bad_answers=wrongs") == 3
    assert "finetuning.calibration.bad_answers: no example has the column 'wrongs'" in said(capsys)


def test_bad_answers_count_beside_those_that_the_evaluator_knows(rows, capsys):
    made = rows(answered=False)
    lines = [json.loads(line) for line in (made / "train.jsonl").read_text().splitlines()]
    (made / "train.jsonl").write_text("".join(json.dumps({**line, "wrong": ["no", "never"]}) + "\n" for line in lines))
    knowing = "eval.evaluators.score={_type: knowing}"
    assert run(knowing, "finetuning.calibration.bad_answers=wrong") == 4
    assert "12 of 12 bad answers score no less than the gold answer" in said(capsys)


def judged(made, verdict):
    """50 verdicts on 6 examples: half the answers are right, half are not."""
    lines = []
    for n in range(50):
        row = json.loads((made / "train.jsonl").read_text().splitlines()[n % 6])
        right = n % 2 == (n // 6) % 2
        output = row["answer"] if right else row["answer"][::-1] + " " * (n % 7)
        lines.append({"example_id": row["id"], "output": output, "verdict": verdict(right, output)})
    (made / "verdicts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_reward_that_agrees_with_reviewers_passes(rows, capsys):
    made = rows(answered=True)
    judged(made, lambda right, output: right)
    assert main(["calibrate", "c.yml", "--verdicts", "verdicts.jsonl", "-o", SOUND]) == 0
    text = said(capsys)
    assert "agreement with reviewers: 1.000 [1.000, 1.000] (0.5 is chance) on 50 verdicts" in text
    assert "kappa 1.00" in text
    assert "repeatability: 100% scored the same twice" in text
    assert "exploit: empty answer earns 0" in text


def test_a_reward_that_pays_length_is_blocked(rows, capsys):
    made = rows(answered=True)
    judged(made, lambda right, output: "good" if right else "bad")
    length = "eval.evaluators.score={_type: suspect, mode: length}"
    assert main(["calibrate", "c.yml", "--verdicts", "verdicts.jsonl", "-o", length]) == 4
    text = said(capsys)
    assert "the reward disagrees with the reviewers" in text
    assert "the exploit '" in text
    assert "exploit: length: a rejected answer with filler earns 1" in text
    checked = ("finetuning.calibration={enabled: false, verdicts: verdicts.jsonl}",)
    assert run(length, *checked) == 4
    assert "the reward is not what the reviewers want" in said(capsys)


@pytest.mark.parametrize(
    ("line", "finding"),
    [
        ('{"example_id": "train0", "verdict": true}', "verdicts.jsonl:1: nothing was judged"),
        ('{"example_id": "train0", "output": "x", "verdict": "maybe"}', "verdict must be true or false"),
        ('{"example_id": 0, "output": "x", "verdict": true}', "no dataset of the config has an example 0"),
        ('{"example_id": "train0", "rollout_id": "r", "verdict": true}', "name the run that it is in: --run"),
        ('{"example_id": "train0", "output": "x", "verdict": true}', "all verdicts are alike"),
        ("{", "verdicts.jsonl:1"),
        ("", "there is no verdict in it"),
    ],
)
def test_verdicts_that_can_not_be_used(rows, capsys, line, finding):
    made = rows(answered=True)
    (made / "verdicts.jsonl").write_text(line)
    assert main(["calibrate", "c.yml", "--verdicts", "verdicts.jsonl", "-o", SOUND]) == 3
    assert finding in said(capsys)
    assert (made / "verdicts.jsonl").read_text() == line
