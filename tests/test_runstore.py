"""The run folder: nothing half written, nothing lost, what a crash cut off is noticed."""

import os
from pathlib import Path

import pytest

from nat_finetune.errors import ConfigError, OutputError
from nat_finetune.runstore import Log, RunState, RunStore
from nat_finetune.types import (
    CandidateScored,
    Cause,
    Failure,
    FinishReason,
    FunctionCall,
    ModelCall,
    PolicyRef,
    RewardGiven,
    Rollout,
    SamplingParams,
    ToolCall,
)

AT = {"rollout_id": "r", "path": ("<workflow>", "f"), "start": 1.0, "end": 2.5}


def every_kind_of_event():
    call = ModelCall(
        **AT,
        seq=0,
        llm="policy",
        messages=({"role": "user", "content": "né"},),
        message={"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"arguments": {"a": [1]}}}]},
        finish_reason=FinishReason.TOOL_CALLS,
        sampling=SamplingParams(max_tokens=3, stop=("\n",), seed=2**62),
        policy=PolicyRef("policy", 4, digest="abc"),
        prompt_ids=(1, 2),
        completion_ids=(3,),
        logprobs=(-0.1234567890123456,),
    )
    return (
        call,
        ToolCall(**AT, seq=1, name="t", arguments={"q": "x"}, result=[1, None]),
        FunctionCall(**AT, seq=2, name="f", input="i", output={"o": 1.5}),
        CandidateScored(**AT, seq=3, step_name="s", turn_id=1, score=float("inf"), output="x", call_seq=0),
        RewardGiven(**AT, seq=4, name="step", value=None, call_seq=0),
        Failure(**AT, seq=5, stage="tool", cause=Cause.POLICY, error_type="E", message="m"),
    )


def rollout(rollout_id="r", example_id="007"):
    events = every_kind_of_event()
    return Rollout(rollout_id, example_id, 1, 5, events, output={"x": 1}, rewards={"a": None, "b": 0.1}, failure=events[-1])


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore.create(tmp_path / "run")
    store.write_json("run.json", {})
    return store


def test_a_rollout_loads_back_equal(store):
    store.add_rollout(3, rollout())
    store.add_rollout(3, rollout(example_id=7))
    assert list(store.rollouts()) == [(3, rollout()), (3, rollout(example_id=7))]


def test_a_line_that_a_crash_cut_off_is_removed_and_the_log_goes_on(store):
    store.add_rollout(0, rollout("a"))
    size = store.events.size
    with store.events.path.open("ab") as file:
        file.write(b'{"step":0,"rollout":{"rollout_id"')
    again = RunStore.open(store.folder)
    assert [r.rollout_id for _, r in again.rollouts()] == ["a"]
    with again.locked():
        assert again.events.size == size
    with store.events.path.open("ab") as file:
        file.write(b'{"step":0')
    unlocked = RunStore.open(store.folder)
    unlocked.add_rollout(0, rollout("b"))
    assert [r.rollout_id for _, r in unlocked.rollouts()] == ["a", "b"]


def test_a_line_that_another_process_is_writing_is_left_alone(store):
    """A look at a run (`runs`, `eval`, a report) must not cut what the run is amid writing."""
    with store.locked(), store.events.path.open("ab") as file:
        file.write(b'{"step":0,"restarted"')
        file.flush()
        looking = RunStore.open(store.folder)
        assert list(looking.rollouts()) == []
        with pytest.raises(OutputError, match="another process"), looking.locked():
            pass
        file.write(b":true}\n")
    assert list(RunStore.open(store.folder).rollouts()) == [(0, None)]


def test_a_log_of_one_cut_line_becomes_empty(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * 200_000)
    log = Log(path)
    assert list(log.lines()) == []
    log.mend()
    assert log.size == 0


def test_commit_remembers_where_the_logs_stood(store):
    store.add_rollout(0, rollout("a"))
    store.commit(RunState(steps_done=1))
    store.add_rollout(1, rollout("b"))
    state = RunStore.open(store.folder).state()
    assert state.steps_done == 1
    assert [r.rollout_id for _, r in store.rollouts(state.events_offset)] == ["b"]


def test_rollouts_of_a_step_that_was_collected_anew_do_not_count(store):
    store.add_rollout(0, rollout("a"))
    store.add_rollout(1, rollout("b"))
    store.restart_step(1)
    store.add_rollout(1, rollout("c"))
    store.add_rollout(0, rollout("d"))
    assert [(step, found.rollout_id) for step, found in store.counted_rollouts()] == [(0, "a"), (1, "c"), (0, "d")]


def test_a_restarted_step_says_so(store):
    store.add_rollout(2, rollout("a"))
    store.restart_step(2)
    assert [(step, r is None) for step, r in store.rollouts()] == [(2, False), (2, True)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_an_output_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="can't write"):
        RunStore.create(tmp_path / "run")


def test_a_full_disk_leaves_the_log_as_it_was(store, monkeypatch):
    store.add_rollout(0, rollout("a"))
    size = store.events.size
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    log = Log(full)
    with pytest.raises(OutputError, match=r"can't write /dev/full: No space left on device; free space"):
        log.append({"a": 1})
    assert store.events.size == size


def test_a_file_is_replaced_whole_or_not_at_all(store):
    store.write_json("x.json", {"a": 1})
    with pytest.raises(Exception, match="serialize"):
        store.write_json("x.json", {"a": object()})
    assert store.read_json("x.json") == {"a": 1}


def test_a_damaged_state_is_named(store):
    store.write_json("state.json", {"steps_done": "many"})
    with pytest.raises(OutputError, match=r"state.json is not what nat-finetune wrote: steps_done"):
        store.state()


@pytest.mark.parametrize("line", [{}, None, [1], {"step": "0"}, {"step": 0, "rollout": 5}])
def test_a_damaged_log_is_named(store, line):
    store.add_rollout(0, rollout())
    store.events.append(line)
    with pytest.raises(OutputError, match=r"events.jsonl is not what nat-finetune wrote: no "):
        list(store.counted_rollouts())


def test_there_is_no_second_run_in_a_folder(store):
    with pytest.raises(OutputError, match="exists; give another --output-dir"):
        RunStore.create(store.folder)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"expected a run folder, found a folder without run.json"):
        RunStore.open(tmp_path)
    with pytest.raises(ConfigError, match="found no such folder"):
        RunStore.open(tmp_path / "nope")


def test_two_processes_can_not_work_on_one_run(store):
    with store.locked(), pytest.raises(OutputError, match="another process"), RunStore.open(store.folder).locked():
        pass


def test_old_checkpoints_go(store):
    for name in ("step-1", "step-2", "step-3"):
        (store.new_checkpoint(name) / "weights").write_text(name)
    store.keep_newest_checkpoints(1, also="step-1")
    assert sorted(path.name for path in (store.folder / "checkpoints").iterdir()) == ["step-1", "step-3"]
    store.keep_newest_checkpoints(1)
    assert [path.name for path in (store.folder / "checkpoints").iterdir()] == ["step-3"]
    assert list(store.new_checkpoint("step-3").iterdir()) == []


def test_a_run_that_a_process_works_on_is_running(tmp_path):
    store = RunStore.create(tmp_path / "run")
    assert not RunStore(store.folder).is_running
    with store.locked():
        assert RunStore(store.folder).is_running
    assert not RunStore(store.folder).is_running
