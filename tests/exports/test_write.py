"""Exports through the command line: what is written reads back as the same pairs, whole, and without leaks."""

import json

import pytest
import yaml

from nat_finetune.builders.preference import PreferenceDatasetBuilder, PreferenceDatasetBuilderConfig
from nat_finetune.cli.main import main
from nat_finetune.data.exports.formats import RowWriter
from nat_finetune.datasets.files import FileDataset, JSONLDatasetConfig
from nat_finetune.datasets.rows import jsonl
from nat_finetune.runstore import RunStore
from nat_finetune.types import PreferencePair
from tests.fixtures.exports import config, lines, made_run, rollout

READABLE = ("nemo-rl", "trl", "openai", "nemo-customizer")


def export(source, form, *arguments, code=0):
    """Export, to the folder `out` beside the source."""
    output = source.parent / "out"
    batch = ("--global-batch-size", "1") if form == "nemo-rl" and "--global-batch-size" not in arguments else ()
    assert main(["export-data", str(source), "--format", form, "--output", str(output), *batch, *arguments]) == code
    return output


def read_back(path, form):
    """The pairs that `preference_dataset_builder` makes of a file."""
    dataset = JSONLDatasetConfig(file_path=str(path))
    builder = PreferenceDatasetBuilder(PreferenceDatasetBuilderConfig(dataset=dataset))
    pairs = list(builder.build(FileDataset(dataset, jsonl).records()))
    assert f"were read as {form} " in builder.notes()[0]
    assert all(isinstance(found, PreferencePair) for found in pairs)
    return pairs


def said(pairs, *, scores=False):
    found = [
        (p.context, p.chosen, p.rejected, *((p.chosen_score, p.rejected_score, p.margin) if scores else ())) for p in pairs
    ]
    return sorted(found, key=repr)


def built(run):
    """The pairs of the run's rollouts, by its own builder."""
    from nat_finetune.builders.dpo import DPOTrajBuilder, DPOTrajBuilderConfig
    from nat_finetune.types import Target

    settings = DPOTrajBuilderConfig(ttc_step_name="move_candidate")
    rollouts = [found for _, found in RunStore(run).rollouts() if found is not None]
    made = DPOTrajBuilder(settings, Target(("choose_move",), "policy")).build(rollouts)
    return [item for item in made if isinstance(item, PreferencePair)]


@pytest.fixture
def run(tmp_path):
    return made_run(tmp_path, [rollout(number) for number in range(20)])


@pytest.mark.parametrize("form", READABLE)
def test_what_is_exported_reads_back_as_the_pairs_that_a_run_builds(run, form):
    folder = export(run, form, "-o", "trainers.once.pair_weighting=pair")
    files = list(folder.rglob("*.jsonl"))
    assert len(files) == 2
    back = [pair for path in files for pair in read_back(path, form)]
    assert len(back) == 120
    assert said(back, scores=form == "trl") == said(built(run), scores=form == "trl")


@pytest.mark.parametrize("form", [*READABLE, "sharegpt"])
def test_all_rows_of_a_file_have_one_schema_and_only_files_are_left(run, form):
    folder = export(run, form)
    for path in folder.rglob("*.jsonl"):
        assert len({json.dumps(shape(row)) for row in lines(path)}) == 1
    assert not list(folder.rglob(".*"))
    assert not (run.parent / ".out.tmp").exists()


def shape(value):
    if isinstance(value, dict):
        return {key: shape(item) for key, item in sorted(value.items())}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__name__


def test_no_task_and_no_context_is_on_both_sides(tmp_path):
    run = made_run(tmp_path, [rollout(number) for number in range(20)], task_key=None)
    rows = [{"id": n, "question": f"q {n}", "task_key": f"t{n // 2}"} for n in range(20)]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = export(run, "trl", "--validation-share", "0.3")
    tasks = [{example(row) // 2 for row in lines(folder / f"{side}.jsonl")} for side in ("train", "validation")]
    assert tasks[0] & tasks[1] == set()
    assert len(tasks[1]) == 3


def example(row):
    return int(row["prompt"][-1]["content"].split()[1].rstrip(","))


def test_a_context_that_is_trained_leaves_validation(tmp_path, capsys):
    rollouts = [rollout(number, about=number // 2, scores=(number + 0.5, number)) for number in range(20)]
    folder = export(made_run(tmp_path, rollouts), "trl", "--validation-share", "0.4", "--json")
    made = json.loads(capsys.readouterr().out)
    contexts = [{json.dumps(row["prompt"]) for row in lines(folder / f"{side}.jsonl")} for side in ("train", "validation")]
    assert contexts[0] & contexts[1] == set()
    assert made["dropped"]["bridges_split"] + sum(made["rows"].values()) == 40
    assert made["rows"]["train.jsonl"] == 24


def test_weights_that_no_file_holds_are_sampled_or_refused(run, capsys):
    folder = export(run, "trl", "--json")
    made = json.loads(capsys.readouterr().out)
    assert made["rows"] == {"train.jsonl": 36, "validation.jsonl": 4}
    assert made["dropped"] == {"one_of_its_set": 80}
    assert any(note.startswith("pair_weighting: set: the file has no weights") for note in made["notes"])
    contexts = [json.dumps(row["prompt"]) for path in folder.glob("*.jsonl") for row in lines(path)]
    assert len(set(contexts)) == len(contexts)
    other = run.parent / "other"
    assert main(["export-data", str(run), "--format", "trl", "--output", str(other), "--pair-weights", "refuse"]) == 3
    assert "80 of 120 pairs share their candidate set" in capsys.readouterr().err
    assert not other.exists()


def test_fewer_pairs_than_nemo_rls_batch_are_refused(run, capsys):
    assert main(["export-data", str(run), "--format", "nemo-rl"]) == 3
    assert "36 pairs to train on are fewer than NeMo RL's global batch of 128" in capsys.readouterr().err
    assert not (run / "data-nemo-rl").exists()
    assert main(["export-data", str(run), "--format", "nemo-rl", "--global-batch-size", "36", "--task-name", "moves"]) == 0
    rows = lines(run / "data-nemo-rl" / "train.jsonl")
    assert {row["task_name"] for row in rows} == {"moves"}
    assert {tuple(c["rank"] for c in row["completions"]) for row in rows} == {(0, 1)}


def test_demonstrations_are_the_best_of_each_set(run):
    folder = export(run, "openai", "--items", "demonstrations")
    rows = [row for path in folder.glob("*.jsonl") for row in lines(path)]
    assert len(rows) == 40
    assert {row["messages"][-1]["content"] for row in rows} == {"é 0.9"}


def test_rollouts_have_the_reward_that_was_trained(run, capsys):
    folder = export(run, "trl", "--items", "rollouts")
    rows = [row for path in folder.glob("*.jsonl") for row in lines(path)]
    assert len(rows) == 40
    assert all(row["reward"] == row["rewards"]["outcome"] == example(row) % 2 / 2 for row in rows)
    assert main(["export-data", str(run), "--format", "openai", "--items", "rollouts"]) == 2
    assert "--format openai does not hold rollouts; these do: trl" in capsys.readouterr().err
    settings = yaml.safe_load((run / "config.yml").read_text())
    del settings["finetuning"]["reward_function"]
    run.joinpath("config.yml").write_text(yaml.safe_dump(settings))
    assert main(["export-data", str(run), "--format", "trl", "--items", "rollouts"]) == 2
    assert "finetuning.reward_function: --items rollouts writes rewards, and none is trained" in capsys.readouterr().err


def test_retried_attempts_and_steps_that_were_collected_anew_do_not_count(tmp_path):
    run = made_run(tmp_path, [rollout(number) for number in range(10)])
    store = RunStore(run)
    store.restart_step(0)
    attempt = rollout(11, about=99)
    store.add_rollout(0, type(attempt)("step00000-00011-000~1", 11, 0, 0, attempt.events))
    for number in range(10, 20):
        store.add_rollout(0, rollout(number))
    folder = export(run, "trl")
    rows = [row for path in folder.glob("*.jsonl") for row in lines(path)]
    assert sorted(map(example, rows)) == sorted([*range(10, 20)] * 2)


def test_a_manifest_says_which_example_is_where(run, capsys):
    sides = {"version": 1, "train": list(range(10)), "validation": [10, 11], "test": list(range(12, 20))}
    (run.parent / "split.json").write_text(json.dumps(sides))
    folder = export(run, "trl", "--manifest", str(run.parent / "split.json"), "--json")
    assert json.loads(capsys.readouterr().out)["dropped"]["held_out"] == 16
    assert {example(row) for row in lines(folder / "train.jsonl")} == set(range(10))
    assert {example(row) for row in lines(folder / "validation.jsonl")} == {10, 11}
    (run.parent / "split.json").write_text(json.dumps({**sides, "test": []}))
    command = ["export-data", str(run), "--format", "trl", "--manifest", str(run.parent / "split.json")]
    assert main([*command]) == 3
    assert "does not say of 16 of 40 rows on which side they are" in capsys.readouterr().err
    assert main([*command, "--validation-share", "0.2"]) == 2
    assert "--validation-share and --split-by would be ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("form", "arguments", "code", "message"),
    [
        ("trl", ["--task-name", "x"], 2, "--task-name would be ignored: it is for --format nemo-rl"),
        ("trl", ["--global-batch-size", "8"], 2, "--global-batch-size would be ignored"),
        ("trl", ["--split-by", "task_key"], 2, "--split-by would be ignored"),
        ("nemo-rl", ["--items", "demonstrations"], 2, "these do: trl, openai, nemo-customizer, sharegpt"),
        ("trl", ["--validation-share", "0.01"], 3, "--validation-share 0.01 leaves no validation row"),
    ],
)
def test_what_would_be_ignored_or_empty_is_refused(run, capsys, form, arguments, code, message):
    folder = export(run, form, *arguments, code=code)
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_a_folder_that_is_there_is_not_touched(run, capsys):
    (run.parent / "out").mkdir()
    export(run, "trl", code=8)
    assert "exists; give a folder that does not" in capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_an_export_that_fails_half_way(run, monkeypatch, error):
    calls = []

    def full(self, line):
        calls.append(line)
        if len(calls) == 5:
            raise error
        return line

    monkeypatch.setattr(RowWriter, "finished", full)
    export(run, "trl", code=8 if isinstance(error, OSError) else 130)
    assert sorted(path.name for path in run.parent.iterdir()) == ["examples.jsonl", "run"]


def test_items_that_the_format_can_not_hold_are_named_or_counted(tmp_path, capsys):
    odd = rollout(3)
    shown = [{**message, "tool_calls": []} for message in odd.events[0].input]
    events = tuple(
        type(e)(**{**{f: getattr(e, f) for f in e.__slots__}, "input": shown}) if e.kind == "candidate_scored" else e
        for e in odd.events
    )
    run = made_run(tmp_path, [*(rollout(n) for n in range(3)), type(odd)(odd.rollout_id, 3, 0, 0, events)])
    export(run, "trl", "--validation-share", "0", code=3)
    assert "6 items can't be written as trl" in capsys.readouterr().err
    folder = export(run, "trl", "--validation-share", "0", "--on-unwritable", "skip", "--json")
    made = json.loads(capsys.readouterr().out)
    assert made["dropped"]["not_in_format"] == 6
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "train.jsonl"]


# --------------------------------------------------------------------------------------------------------------- records


def labels(folder, rows, **builder):
    """A config that trains on these records."""
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = config()
    dataset = {"_type": "jsonl", "file_path": "labels.jsonl"}
    made["trajectory_builders"]["built"] = {"_type": "preference_dataset_builder", "dataset": dataset, **builder}
    for key in ("functions", "ttc_strategies", "workflow", "eval"):
        del made[key]
    for key in ("target_functions", "reward_function"):
        del made["finetuning"][key]
    (folder / "labels.yml").write_text(yaml.safe_dump(made))
    return folder / "labels.yml"


def label(number, **changes):
    return {"prompt": f"claim {number}: {'abcdefghij'[number % 10] * 9}", "chosen": "yes", "rejected": "no", **changes}


def test_records_are_exported_without_a_run_and_each_judgment_is_a_row(tmp_path):
    rows = [label(number, task_key=f"t{number}") for number in range(20)] + [label(0, task_key="t0", reviewer="second")]
    folder = export(labels(tmp_path, rows), "nemo-customizer")
    training = lines(folder / "training" / "training_file.jsonl")
    validation = lines(folder / "validation" / "validation_file.jsonl")
    assert len(training) + len(validation) == 21
    assert len(validation) == 2
    assert all(isinstance(row["prompt"], str) for row in training)
    texts = [row["prompt"] for row in training + validation]
    assert texts.count(rows[0]["prompt"]) == 2
    assert {row["prompt"] for row in training} & {row["prompt"] for row in validation} == set()


def test_near_duplicates_of_records_are_on_one_side(tmp_path):
    text = "the storm on the coast broke the {} window of unit {} and water came in below the door of the {}"
    words = [f"word{number}" for number in range(40)]
    rows = [label(n, prompt=text.format(words[n // 2], f"u{n // 2} x{n // 2} y{n // 2} z{n // 2}", n)) for n in range(40)]
    source = labels(tmp_path, rows)
    folder = export(source, "trl", "--validation-share", "0.3", "--split-by", "near_duplicates")
    sides = [
        {row["prompt"][0]["content"].split(" window")[0] for row in lines(folder / f"{side}.jsonl")}
        for side in ("train", "validation")
    ]
    assert sides[0] & sides[1] == set()
    assert len(sides[1]) == 6


@pytest.mark.parametrize("allowed", [False, True])
def test_records_that_leak_into_what_is_held_out_are_refused(tmp_path, capsys, allowed):
    source = labels(tmp_path, [label(number, task_key=f"t{number}") for number in range(20)])
    made = yaml.safe_load(source.read_text())
    (tmp_path / "test.jsonl").write_text(json.dumps({"id": 5, "question": "another", "task_key": "t3"}) + "\n")
    made["workflow"] = {"_type": "tic_tac_toe_move", "llm": "policy", "style": "tiny"}
    made["eval"] = {"evaluators": {"right": {"_type": "exact_match"}}}
    made["finetuning"] |= {"test": {"dataset": {"_type": "jsonl", "file_path": "test.jsonl"}}, "allow_leakage": allowed}
    source.write_text(yaml.safe_dump(made))
    folder = export(source, "trl", "--split-by", "task_key", code=0 if allowed else 3)
    said = capsys.readouterr()
    assert "labels.jsonl:4 and 5 (finetuning.test.dataset): the same task key 't3'" in (said.out if allowed else said.err)
    assert folder.exists() is allowed


def test_rollouts_are_needed_where_the_builder_reads_some(run, capsys):
    assert main(["export-data", str(run / "config.yml"), "--format", "trl"]) == 2
    assert "builds from rollouts: give the folder of a run" in capsys.readouterr().err


def test_bad_records_and_empty_runs_are_said(tmp_path, run, capsys):
    export(labels(tmp_path, [label(0), {"prompt": "x", "chosen": "y", "rejected": None}]), "trl", code=3)
    assert "labels.jsonl:2: 'rejected' is null" in capsys.readouterr().err
    (run / "events.jsonl").unlink()
    export(run, "trl", code=3)
    assert "there is nothing to export; left out: nothing" in capsys.readouterr().err


def test_a_manifest_of_records_goes_by_their_ids(tmp_path):
    source = labels(tmp_path, [label(number, id=f"c{number}") for number in range(4)])
    sides = {"version": 1, "train": ["c0", "c1"], "validation": ["c2"], "test": ["c3"]}
    (tmp_path / "split.json").write_text(json.dumps(sides))
    folder = export(source, "trl", "--manifest", str(tmp_path / "split.json"))
    said = [[row["prompt"][0]["content"][:7] for row in lines(folder / f"{side}.jsonl")] for side in ("train", "validation")]
    assert said == [["claim 0", "claim 1"], ["claim 2"]]
