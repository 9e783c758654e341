"""A run on the console: what a person reads on a terminal and in a log, and what a program reads."""

from __future__ import annotations

import io
import json
import time

import pytest
from rich.console import Console

from nat_finetune.cli.progress import JsonProgress, LiveProgress, Pace, PlainProgress, duration, reporter, step_line
from nat_finetune.report.progress import NullProgress, Progress
from nat_finetune.types import Estimate, EvalResult, JobState, PolicyRef, TrainingJobRef, TrainingJobStatus
from tests.fixtures.reports import full_report, minimal_report

RESULT = EvalResult(
    split="test",
    policy=PolicyRef("policy", 3),
    scores={},
    clusters={},
    metrics={"outcome": Estimate(0.5, 0.4, 0.6, 12), "[red]odd": Estimate(None, None, None, 0)},
    seconds=1.0,
)


def recorded(*, terminal: bool = False):
    return Console(file=io.StringIO(), width=150, force_terminal=terminal, soft_wrap=not terminal, color_system=None)


def tell(progress: Progress, report):
    """A run of two steps, told as `run` and `finetune` tell it."""
    progress.run_started({"folder": "runs/x", "config": "x.yml", "notes": ["a note [of two]"]})
    progress.planned(30, 0)
    for step in report["steps"]:
        progress.stage_started(step["step"], "collect", 128)
        progress.advanced(64, 4_500)
        progress.stage_started(step["step"], "update", None)
        progress.step_finished(step)
    progress.warning("watch out [bold]")
    progress.evaluated("test-after", 2, RESULT)
    progress.finished(report)


def lines(console):
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_plain_lines():
    console = recorded()
    tell(PlainProgress(console), full_report(steps=2))
    found = lines(console)
    assert found[:2] == ["run folder: runs/x", "note: a note [of two]"]
    step, left = found[2].rsplit(" · ", 1)
    assert step == (
        "step 0 · 1/30 done · 128 rollouts · outcome 0.600 (spread 0.400) · kept 14, dropped 2 · loss 0.100 · 3.0 + 2.0 s"
    )
    assert left == "0 s left"
    assert "1 failed" in found[3]
    assert found[4] == "warning: watch out [bold]"
    assert found[5] == "test-after (policy 3): outcome 0.500 [0.400, 0.600], [red]odd unknown [unknown, unknown]"
    said = [f"warning: {full_report()['audit'][0]['found']}"]
    assert found[-3:] == [full_report()["headline"], *said, "report: runs/x/report.html"]
    assert "\x1b" not in console.file.getvalue()


def test_the_table_holds_every_metric_and_makes_nothing_up():
    console = recorded()
    PlainProgress(console).finished(full_report())
    rows = [line.split() for line in lines(console)]
    assert ["outcome", "0.621", "0.903", "0.282", "[0.212,", "0.362]", "14"] in rows
    assert "<script>alert('&')</script><img" in {row[0] for row in rows}
    assert ["legal_rate", "0.930", "unknown", "unknown", "[unknown,", "unknown]", "unknown"] in rows


def test_a_step_without_reward_or_update():
    step = full_report(steps=13)["steps"][12]
    assert "outcome unknown" in step_line(step)
    assert "no update" in step_line(step)


def test_a_step_for_which_nothing_was_collected_here():
    handed_over = full_report(steps=1)["steps"][0] | {"rollouts": 0, "reward": {}, "kept": 0, "dropped": {}}
    assert step_line(handed_over, 1) == "step 0 · 1/1 done · loss 0.100 · 3.0 + 2.0 s"
    assert step_line(handed_over | {"kept": 12}) == "step 0 · kept 12, dropped 0 · loss 0.100 · 3.0 + 2.0 s"
    assert "kept 0, dropped 0 · no update" in step_line(handed_over | {"update": None})


def test_a_run_that_failed_is_told_too():
    console = recorded()
    progress = PlainProgress(console)
    progress.run_started({"folder": "runs/broken", "config": "b.yml", "notes": []})
    progress.finished(minimal_report())
    assert lines(console)[-2].startswith("backend failure: llms.policy")


def test_live_shows_the_lines_and_a_status_that_goes_away():
    console = recorded(terminal=True)
    with LiveProgress(console) as progress:
        progress.run_started({"folder": "runs/x", "config": "x.yml", "notes": []})
        progress.planned(30, 0)
        progress.step_finished(full_report(steps=1)["steps"][0])
        progress.stage_started(1, "collect", 128)
        progress.advanced(32, 4_500)
        time.sleep(0.4)
        shown = console.file.getvalue()
        progress.finished(full_report())
    assert "step 0 · 1/30 done" in shown
    assert "step 1 · collect · " in shown
    assert "32/128 rollouts" in shown
    assert "tokens/s" in shown
    assert "to the stage's end" in shown
    assert " left" in shown
    assert console.file.getvalue().rstrip().endswith("report: runs/x/report.html")


def test_live_ends_also_when_the_run_raises():
    console = recorded(terminal=True)

    def interrupted():
        with LiveProgress(console) as progress:
            progress.stage_started(0, "collect", 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "\x1b[?25h" in console.file.getvalue(), "the cursor is back"


def test_json_lines(capsys):
    tell(JsonProgress(), full_report(steps=2))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["event"] for e in events] == [
        "run_started", "planned", "stage_started", "stage_started", "step_finished", "stage_started", "stage_started",
        "step_finished", "warning", "evaluated", "finished",
    ]  # fmt: skip
    assert events[4]["reward"]["outcome"]["mean"] == pytest.approx(0.6)
    assert events[9]["metrics"]["[red]odd"] == {"mean": None, "low": None, "high": None, "n": 0}
    assert (events[-1]["exit_code"], events[-1]["exit_reason"]) == (0, "improved")


def test_the_reporter_fits_standard_output(capsys):
    with reporter(as_json=True) as progress:
        assert isinstance(progress, JsonProgress)
    with reporter(as_json=False) as progress:
        assert isinstance(progress, PlainProgress)


def test_nobody_is_told():
    tell(NullProgress(), full_report(steps=2))


def test_pace_counts_the_steps_of_this_process_only():
    now = [0.0]
    pace = Pace(left=10, clock=lambda: now[0])
    assert str(pace) == ""
    now[0] = 30.0
    pace.finished()
    assert str(pace) == "4 min left"  # nine more of 30 s
    for _ in range(9):
        pace.finished()
    assert str(pace) == ""


def test_resumed_run_says_where_it_stands():
    console = recorded()
    progress = PlainProgress(console)
    progress.planned(30, 12)
    assert lines(console) == ["resumed: 12 of 30 steps were done"]


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "0 s"), (99, "99 s"), (100, "2 min"), (7_400, "2.1 h")])
def test_duration(seconds, said):
    assert duration(seconds) == said


def test_what_a_backend_says_of_a_job(capsys):
    status = TrainingJobStatus(JobState.UNKNOWN, None, "queue 3", "warming_up", {"loss": 0.5})
    ref = TrainingJobRef("job-1", "k", "away")
    console = recorded()
    PlainProgress(console).job_status(2, ref, status)
    line = "step 2 · job job-1 · warming_up (a status that nat-finetune does not know), loss 0.5: queue 3"
    assert console.file.getvalue().strip() == line
    JsonProgress().job_status(2, ref, status)
    said = json.loads(capsys.readouterr().out)
    assert (said["event"], said["job_id"], said["backend_state"], said["progress"]) == (
        "job_status",
        "job-1",
        "warming_up",
        None,
    )
