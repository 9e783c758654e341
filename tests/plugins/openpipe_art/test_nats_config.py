"""NAT's own shape of config: migrated it keeps ART as its backend, and runs to the end on servers of both generations."""

import json

import pytest

from nat_finetune.cli.main import main
from nat_finetune.config.load import load_config
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.serving import serving
from tests.fixtures.nat import theirs
from tests.source_tree import ROOT

NAT = ROOT / "tests" / "fixtures" / "nat" / "openpipe_art.yml"


@pytest.fixture
def their_components():
    registry = Registry.installed()
    registry.add_module(theirs, origin="theirs 1.0")
    return registry


@pytest.fixture
def migrated(tmp_path):
    """NAT's example as `nat-finetune migrate` writes it, beside its data."""
    path = tmp_path / "config.yml"
    assert main(["migrate", str(NAT), "--output", str(path)]) == 0
    for file, count in (("data.json", 8), ("held_out.json", 4)):
        rows = [{"id": f"{file}-{i}", "question": f"{'XO'[i % 2]} {file[0]}{i}", "answer": "Win!"} for i in range(count)]
        (tmp_path / file).write_text(json.dumps(rows))
    return path


def test_nats_example_validates_with_art_kept(migrated, their_components, capsys):
    loaded = load_config(migrated, registry=their_components)
    assert loaded.notes == ()
    config = loaded.config
    assert config.trainer_adapters["art"].component_name == "openpipe_art_trainer_adapter"
    assert config.trajectory_builders["art"].generations == 4
    assert config.llms["openpipe_llm"].temperature == 1.0
    assert config.trainer_adapters["art"].training.trainer_args == {"weight_decay": 0.01}


def test_the_file_itself_loads_with_notes_of_what_was_changed(their_components):
    notes = "\n".join(load_config(NAT, registry=their_components).notes)
    assert "trajectory_builders.art.num_generations: 4: NAT would compare rollouts of different examples" in notes
    assert "llms.openpipe_llm.temperature: 1.0: ART trains on the logprobs at temperature 1" in notes


@pytest.mark.parametrize("generation", ["0.4", "0.5"])
async def test_nats_example_runs_to_its_end(migrated, their_components, tmp_path, generation):
    with serving(art_app(tmp_path / "art", generation)) as server:
        port = server.url.rsplit(":", 1)[1]
        overrides = [f"trainer_adapters.art.backend.port={port}", "finetuning.num_epochs=3", "finetuning.seed=1"]
        loaded = load_config(migrated, overrides=overrides, registry=their_components)
        store = new_run(loaded, tmp_path / "runs")
        report = await finetune(loaded, their_components, store, NullProgress())
    assert report["exit_code"] == 0
    assert [part["service"] for part in report["backend"]] == [f"OpenPipe ART {generation}"] * 3
    last = report["backend"][-1]
    assert last["deployment"].startswith("trainer_run at" if generation == "0.4" else "trainer_run@3 at")
    assert last["sent"]["learning_rate"] == 1e-6
    assert last["sent"]["kl"] == 0.1
    assert last["canary"]["moved"] > 0
    assert len(report["validations"]) >= 2
    assert "OpenPipe ART" in (store.folder / "report.html").read_text()
    requests = [request.json for request in server.of("POST", "/_train_model")]
    assert len(requests) == 3
    turns = [item for body in requests for group in body["trajectory_groups"] for t in group["trajectories"]
             for item in t["messages_and_choices"] if "logprobs" in item]  # fmt: skip
    assert len(turns) == sum(len(g["trajectories"]) for b in requests for g in b["trajectory_groups"]) * theirs.TURNS
