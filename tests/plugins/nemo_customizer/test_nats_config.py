"""NAT's own shape of config, and a shipped workflow's: they keep NeMo Customizer as their backend and run to the end."""

import json

import pytest

from nat_finetune.cli.main import main
from nat_finetune.config.load import load_config
from nat_finetune.errors import ConfigError, Detached
from nat_finetune.finetune import finetune, new_run
from nat_finetune.registry import Registry
from nat_finetune.report.progress import NullProgress
from nat_finetune.testing.nemo_server import NemoScript, nemo_app
from nat_finetune.testing.serving import serving
from tests.fixtures.nat import theirs
from tests.source_tree import ROOT

NAT = ROOT / "tests" / "fixtures" / "nat" / "nemo_customizer.yml"
SHIPPED = ROOT / "configs" / "dpo_tic_tac_toe_nemo_customizer.yml"
SECRETS = {"HF_TOKEN": "hf-4711-not-for-any-file", "NVIDIA_API_KEY": "nv-0815-not-for-any-file"}


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
    rows = [{"id": i, "question": f"{'XO'[i % 2]} number {i}", "answer": "Win!"} for i in range(8)]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    return path


def pointed_at(server, adapter="customizer", llm="training_llm"):
    return [
        f"trainer_adapters.{adapter}.entity_host={server.url}",
        f"trainer_adapters.{adapter}.datastore_host={server.url}",
        f"trainer_adapters.{adapter}.poll_interval_seconds=0.02",
        f"llms.{llm}.base_url={server.url}/nim/base/v1",
    ]


async def test_nats_example_runs_to_its_end(migrated, their_components, tmp_path):
    with serving(nemo_app(tmp_path / "nemo", NemoScript(hf_token=SECRETS["HF_TOKEN"]))) as server:
        given = {"overrides": pointed_at(server), "registry": their_components, "environment": SECRETS}
        loaded = load_config(migrated, **given)
        store = new_run(loaded, tmp_path / "runs")
        report = await finetune(loaded, their_components, store, NullProgress())
        (job,) = server.of("POST", "/v1/customization/jobs")
    assert report["exit_code"] == 0
    (part,) = report["backend"]
    assert (part["service"], part["status"], part["best_epoch"]) == ("NeMo Customizer", "completed", 5)
    assert part["output_model"] == part["deployment"]["model"]
    assert (job.json["hyperparameters"]["epochs"], job.json["hyperparameters"]["batch_size"]) == (5, 8)
    page = (store.folder / "report.html").read_text()
    assert part["output_model"] in page
    assert part["revision"] in page
    kept = [path for path in store.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if any(secret.encode() in path.read_bytes() for secret in SECRETS.values())]


async def shipped(server, tmp_path, *overrides):
    registry = Registry.installed()
    data = []
    for key, name, count in (("eval.general", "train", 30), ("finetuning.test", "test", 20)):
        lines = (ROOT / "workflows" / "tic_tac_toe" / "data" / f"move_{name}_short.jsonl").read_text().splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines[:count]))
        data.append(f"{key}.dataset.file_path={tmp_path}/{name}.jsonl")
    loaded = load_config(SHIPPED, overrides=[*pointed_at(server, llm="policy"), *data, *overrides], registry=registry)
    store = new_run(loaded, tmp_path / "runs")
    return store, await finetune(loaded, registry, store, NullProgress())


async def test_the_report_compares_the_deployed_model_with_the_base(tmp_path):
    with serving(nemo_app(tmp_path / "nemo")) as server:
        _, report = await shipped(server, tmp_path)
        asked = [request.path for request in server.requests if request.path.endswith("/chat/completions")]
    legal = report["metrics"]["legal_rate"]
    assert legal["after"]["mean"] == 1.0 > legal["before"]["mean"]
    assert {path.split("/")[2] for path in asked} == {"base", "tic-tac-toe"}


async def test_a_config_that_the_server_lacks_ends_the_run_before_anything_is_sampled(tmp_path):
    with serving(nemo_app(tmp_path / "nemo")) as server:
        with pytest.raises(ConfigError, match="no customization config"):
            await shipped(server, tmp_path, "trainer_adapters.customizer.customization_config=meta/other@v1")
        assert not server.of("POST", "/")


@pytest.mark.slow
async def test_a_run_that_does_not_wait_says_how_to_go_on(tmp_path):
    with serving(nemo_app(tmp_path / "nemo")) as server:
        with pytest.raises(Detached, match="nat-finetune jobs attach"):
            await shipped(server, tmp_path, "trainers.customizer.wait_for_completion=false", "finetuning.test=null")
        assert len(server.of("POST", "/v1/customization/jobs")) == 1
