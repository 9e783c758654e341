"""Held-out preference pairs, through the command line: never trained on, and measured before, between and after."""

import json

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from nat_finetune.cli.main import main
from nat_finetune.errors import BackendError
from nat_finetune.local.jobs import LocalTrainerAdapter
from tests.e2e.runs import only_run
from tests.e2e.test_preference_records import CONFIG, label, report, write
from tests.fixtures.models import tiny_model

WORDS = ["free square", "lose", "win", "draw", "the quick brown fox", "move 0", "o", "board x"]
FILE = {"_type": "jsonl", "file_path": "x"}
PAIRS = ["preference_accuracy", "preference_reward_accuracy"]


def side(text):
    return [{"role": "assistant", "content": text}]


def judged(number):
    """Two judgments of every task: the chosen side is any of the words."""
    chosen, rejected = WORDS[number % 8], WORDS[(number * 3 + 1) % 8]
    rejected = WORDS[(number + 1) % 8] if chosen == rejected else rejected
    return label(number, task_key=f"t{number // 2}", chosen=side(chosen), rejected=side(rejected))


ROWS = [judged(number) for number in range(40)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for part in tiny_model("llama"):
        part.save_pretrained(tmp_path / "model")
    write(tmp_path, ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(folder, **changes):
    config = {**CONFIG, "finetuning": {**CONFIG["finetuning"], **changes}}
    (folder / "c.yml").write_text(yaml.safe_dump(config))


@torch.no_grad()
def likelier(model_folder, rows):
    """By line of the file: whether plain transformers finds the chosen side more probable, its end of turn included."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()

    def total(row, name):
        asked = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
        answer = tokenizer(row[name][0]["content"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        logprobs = model(torch.tensor([prompt + answer])).logits[0].float().log_softmax(-1)
        return sum(float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(answer))

    return {f"labels.jsonl:{at}": float(total(row, "chosen") > total(row, "rejected")) for at, row in enumerate(rows, 1)}


def measured(run, name):
    """Metric → record → score."""
    found = json.loads((run / "evaluations" / f"{name}.json").read_text())
    return {metric: {key.split(" ")[0]: value for key, value in by.items()} for metric, by in found["scores"].items()}


def failing_from(count, method):
    calls = []

    async def failing(*arguments):
        calls.append(arguments)
        if len(calls) >= count:
            raise BackendError("the machine is gone")
        return await method(*arguments)

    return failing


def test_a_share_of_the_pairs_is_held_out_and_measured(folder, monkeypatch):
    trained = []
    prepare = LocalTrainerAdapter.prepare

    async def watched(self, collection, reference):
        trained.append({item.provenance.record for item in collection.items})
        return await prepare(self, collection, reference)

    monkeypatch.setattr(LocalTrainerAdapter, "prepare", watched)
    validation = {"interval": 1, "select": "preference_accuracy"}
    configure(folder, split={"validation": 0.2, "test": 0.3}, validation=validation, num_epochs=2, keep_checkpoints=2)
    assert main(["run", "c.yml"]) == 0
    run, found = only_run(folder), report(folder)

    before, after, looked_at = (measured(run, name) for name in ("test-before", "test-after", "validation-00000"))
    sides = {"test": set(before[PAIRS[0]]), "validation": set(looked_at[PAIRS[0]]), "train": trained[0]}
    assert {name: len(records) for name, records in sides.items()} == {"train": 20, "validation": 8, "test": 12}
    assert trained[0] == trained[1]
    assert set().union(*sides.values()) == {f"labels.jsonl:{line}" for line in range(1, 41)}
    tasks = [{(int(record.split(":")[1]) - 1) // 2 for record in records} for records in sides.values()]
    assert sum(map(len, tasks)) == len(set().union(*tasks)) == 20  # no task is on two sides

    truth = likelier("model", ROWS)
    assert before[PAIRS[0]] == {record: truth[record] for record in sides["test"]}
    assert looked_at[PAIRS[0]] == {record: truth[record] for record in sides["validation"]}
    assert set(before[PAIRS[1]].values()) == {0.5}  # nothing has been learned: the policy is the reference
    assert main(["export", str(run), "exported"]) == 0
    learned = likelier("exported", ROWS)
    assert after[PAIRS[0]] == {record: learned[record] for record in sides["test"]}

    row = found["metrics"]["preference_accuracy"]
    assert found["primary_metric"] == "preference_accuracy"
    assert "preference_accuracy" in found["headline"]
    assert row["before"]["mean"] == sum(before[PAIRS[0]].values()) / 12
    assert row["after"]["mean"] == sum(after[PAIRS[0]].values()) / 12
    assert row["gain"]["n"] == 6  # tasks, not pairs
    assert found["checkpoint"]["metric"] == "preference_accuracy"
    assert any("20 are for training; 8 are held out for validation and 12 for the test" in line for line in found["account"])
    assert found["data"]["pairs"]["test"] == {"pairs": 12, "contexts": 12, "clusters": 6}
    manifest = json.loads((run / "split.json").read_text())
    assert [len(manifest[name]) for name in ("train", "validation", "test")] == [20, 8, 12]


def test_an_export_holds_the_same_pairs_out(folder):
    configure(folder, split={"validation": 0.2, "test": 0.3})
    assert main(["run", "c.yml"]) == 0
    run = only_run(folder)
    held = {
        int(record.split(":")[1]) for name in ("test-before", "validation-00000") for record in measured(run, name)[PAIRS[0]]
    }

    def boards(name):
        return {json.loads(line)["prompt"][1]["content"] for line in (folder / name).read_text().splitlines()}

    assert main(["export-data", str(run), "--format", "trl", "--output", "own"]) == 0
    train, validation = boards("own/train.jsonl"), boards("own/validation.jsonl")
    assert train | validation == {f"board {number}" for number in range(40) if number + 1 not in held}
    manifest = str(run / "split.json")
    assert main(["export-data", str(run), "--format", "trl", "--output", "same", "--manifest", manifest]) == 0
    assert boards("same/train.jsonl") == train | validation
    looked_at = measured(run, "validation-00000")[PAIRS[0]]
    assert boards("same/validation.jsonl") == {f"board {int(record.split(':')[1]) - 1}" for record in looked_at}


def test_a_manifest_of_other_records_is_refused(folder, capsys):
    (folder / "other.json").write_text(json.dumps({"version": 1, "train": ["a"], "validation": ["b"], "test": ["c"]}))
    configure(folder, split={"validation": 0.2, "test": 0.3, "manifest": "other.json"})
    assert main(["run", "c.yml"]) == 3
    assert "it is another dataset's" in capsys.readouterr().err


def test_a_resumed_run_holds_the_same_pairs_out(folder, monkeypatch):
    configure(folder, split={"test": 0.3}, num_epochs=2)
    with monkeypatch.context() as broken:
        broken.setattr(LocalTrainerAdapter, "submit", failing_from(2, LocalTrainerAdapter.submit))
        assert main(["run", "c.yml"]) != 0
    run = only_run(folder)
    kept = json.loads((run / "split.json").read_text())
    assert main(["run", "--resume", str(run)]) == 0
    assert json.loads((run / "split.json").read_text()) == kept
    first = measured(run, "test-before")
    run.rename(folder / "resumed")
    assert main(["run", "c.yml"]) == 0
    assert measured(folder / "resumed", "test-after") == measured(only_run(folder), "test-after")
    assert first == measured(only_run(folder), "test-before")


def test_records_of_their_own_beside_what_the_workflow_is_scored_on(folder):
    held = [judged(number) for number in range(40, 46)]
    (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    (folder / "test.jsonl").write_text(json.dumps({"id": 5, "question": "board 99", "answer": "", "task_key": "t99"}) + "\n")
    test = {"records": {"_type": "jsonl", "file_path": "held.jsonl"}, "dataset": {"_type": "jsonl", "file_path": "test.jsonl"}}
    configure(folder, test=test)
    config = yaml.safe_load((folder / "c.yml").read_text())
    config["workflow"] = {"_type": "single_turn", "llm": "policy"}
    config["eval"] = {"evaluators": {"right": {"_type": "exact_match"}}}
    (folder / "c.yml").write_text(yaml.safe_dump(config))
    assert main(["run", "c.yml"]) == 0
    run, found = only_run(folder), report(folder)
    assert list(found["metrics"]) == [*PAIRS, "right"]
    assert set(measured(run, "test-after")["right"]) == {"5"}  # the example, and no pair
    assert found["steps"][0]["kept"] == 40
    truth = {record.replace("labels", "held"): value for record, value in likelier("model", held).items()}
    assert measured(run, "test-before")[PAIRS[0]] == truth
    assert main(["eval", str(run)]) == 0


def test_held_out_records_that_are_trained_on_stop_the_run(folder):
    (folder / "held.jsonl").write_text(json.dumps({**judged(7), "prompt": [{"role": "user", "content": "what else"}]}) + "\n")
    configure(folder, test={"records": {"_type": "jsonl", "file_path": "held.jsonl"}})
    assert main(["run", "c.yml"]) == 3
    assert "labels.jsonl:7 and held.jsonl:1 (held out for test): the same task key 't3'" in report(folder)["message"]


def test_the_figures_of_a_policy_that_is_not_trained(folder, capsys):
    configure(folder, split={"test": 0.3})
    assert main(["eval", "c.yml"]) == 0
    assert "preference_accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"validation": {"metrics": ["preference_accuracy"], "dataset": FILE}}, "there are none"),
        ({"split": {"test": 0.2}, "test": {"generations": 2}}, "finetuning.test.generations: would be ignored"),
        ({"split": {"test": 0.2}, "test": {"records": FILE}}, "test has both records and a share"),
        (
            {"split": {"test": 0.2}, "test": {"metrics": ["preference_accuracy"], "dataset": FILE}},
            "finetuning.test.dataset: would be ignored",
        ),
        ({"split": {"test": 0.01}}, None),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(folder, capsys, changes, said):
    configure(folder, **changes)
    if said is None:
        assert main(["run", "c.yml"]) == 3
        assert "finetuning.split.test: 0.01 of the contexts of 40 pairs leaves none" in capsys.readouterr().err
        return
    assert main(["validate", "c.yml"]) == 2
    assert said in " ".join(capsys.readouterr().out.split())
