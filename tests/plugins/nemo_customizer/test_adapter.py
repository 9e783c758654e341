"""The adapter against the stand-in: what it sends, what it makes of every answer, and what it never does twice."""

import json
from contextlib import asynccontextmanager

import pytest
from nat_finetune_plugins.nemo_customizer.adapter import open_adapter

from nat_finetune.errors import BackendError, ConfigError, JobGoesOn, ServiceError
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.remote.polling import described
from nat_finetune.testing import FakeBuilder
from nat_finetune.testing.conformance import check_adapter
from nat_finetune.testing.items import pair
from nat_finetune.testing.nemo_server.script import BASE_MODEL
from nat_finetune.types import Collection, JobState
from tests.plugins.nemo_customizer.configs import API_KEY, HF_TOKEN, nemo
from tests.plugins.nemo_customizer.llms import served_model

IMAGE = {"image_name": "nvcr.io/nim/meta/llama-3.1-8b-instruct"}


def collection(run="run-1", step=0, count=10):
    items = [pair("yes", "no", text=f"position {n}", example=n) for n in range(count)]
    return Collection(tuple(items), run, step, "policy")


@asynccontextmanager
async def opened(config, folder=None, llm=None):
    builder = FakeBuilder(llms={"policy": llm} if llm is not None else {}, folder=folder, entry_name="customizer", seed=7)
    async with open_adapter(config, builder) as adapter:
        yield adapter


async def trained(adapter, items=None):
    ref = await adapter.submit(await adapter.prepare(items or collection(), None))
    await adapter.wait(ref)
    return ref


@pytest.mark.parametrize(("training_type", "large_from"), [("dpo", 200), pytest.param("sft", 10**9, marks=pytest.mark.slow)])
def test_it_conforms(tmp_path, training_type, large_from):
    with nemo(tmp_path, large_from=large_from) as (_, config):
        assert check_adapter(config(hyperparameters={"training_type": training_type}))


async def test_what_is_asked_and_in_which_order(tmp_path):
    with nemo(tmp_path / "server") as (server, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            assert isinstance(adapter, RemoteAdapter)
            await adapter.health()
            ref = await trained(adapter)
            result = await adapter.result(ref)
        posted = [request.path for request in server.requests if request.method == "POST"]
        repo = ref.metadata["dataset"]
        assert posted == [
            "/v1/namespaces",
            "/v1/datastore/namespaces",
            "/v1/hf/api/repos/create",
            f"/v1/hf/api/datasets/{repo}/preupload/main",
            f"/v1/hf/api/datasets/{repo}/commit/main",
            "/v1/datasets",
            "/v1/customization/jobs",
        ]
        job = server.of("POST", "/v1/customization/jobs")[0].json
    assert job["custom_fields"]["nat_finetune_key"] == ref.key
    assert job["dataset"] == {"namespace": "ns", "name": repo.partition("/")[2]}
    assert repo.startswith("ns/nat-dpo-run-1-")
    assert job["hyperparameters"]["seed"] == (await _seed(config()))
    assert not adapter.serving()
    told = result.backend
    assert (told["status"], told["best_epoch"], told["losses"]) == ("completed", 3, {"train_loss": 0.3584, "val_loss": 0.4084})
    assert told["not_served"] == "deploy_on_completion is off"
    assert told["revision"] == ref.metadata["revision"]
    assert told["rows"] == {"training/training_file.jsonl": 8, "validation/validation_file.jsonl": 2}
    assert (result.tokens_trained, result.optimiser_steps, result.seconds) == (None, 30, 180.0)
    assert [point["loss"] for point in result.curve] == [0.7, 0.56, 0.448, 0.3584]
    assert (result.policy.version, result.policy.location) == (1, told["output_model"])


async def _seed(config):
    async with opened(config) as adapter:
        spec = await adapter.prepare(collection(), None)
    return spec.payload["hyperparameters"]["seed"]


async def test_each_host_gets_its_own_token_and_none_where_none_is_set(tmp_path):
    with nemo(tmp_path / "1") as (server, config):
        async with opened(config(headers={"X-Gateway": "gw"})) as adapter:
            await trained(adapter)
        for request in server.requests:
            key = HF_TOKEN if "/hf/" in request.path or "datastore" in request.path else API_KEY
            assert (request.headers["authorization"], request.headers["x-gateway"]) == (f"Bearer {key}", "gw")
    with nemo(tmp_path / "2", token=None, hf_token=None) as (server, config):
        async with opened(config(hf_token="", api_key=None)) as adapter:
            await trained(adapter)
        assert not any("authorization" in request.headers for request in server.requests)


async def test_no_secret_is_in_spec_reference_result_or_error(tmp_path):
    with nemo(tmp_path / "server", token="other") as (_, config):
        async with opened(config()) as adapter:
            with pytest.raises(ServiceError, match="401") as caught:
                await adapter.health()
    assert API_KEY not in str(caught.value)
    with nemo(tmp_path / "server2") as (_, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            spec = await adapter.prepare(collection(), None)
            ref = await adapter.submit(spec)
            await adapter.wait(ref)
            texts = repr((spec, ref, await adapter.result(ref), await adapter.logs(ref)))
    assert API_KEY not in texts
    assert HF_TOKEN not in texts


# ------------------------------------------------------------------------------------------------------------------ health


async def test_a_config_that_the_server_does_not_have_is_refused_with_those_that_come_near(tmp_path):
    with nemo(tmp_path) as (_, config):
        async with opened(config(customization_config="meta/llama-3.1-8b-instruct@v1.0.0+H100")) as adapter:
            with pytest.raises(ConfigError, match=r"near: meta/llama-3.1-8b-instruct@v1.0.0\+A100"):
                await adapter.health()


async def test_all_pages_of_configs_are_looked_at(tmp_path):
    many = {f"meta/model-{n}@v1": (("dpo", "lora"),) for n in range(7)}
    with nemo(tmp_path, configs=many, page_size=3) as (_, config):
        lora = {"finetuning_type": "lora"}
        async with opened(config(customization_config="meta/model-6@v1", hyperparameters=lora)) as adapter:
            await adapter.health()
        async with opened(config(customization_config="meta/model-6@v1")) as adapter:
            with pytest.raises(ConfigError, match="does not offer training_type dpo with finetuning_type all_weights"):
                await adapter.health()


async def test_a_host_that_is_no_such_service_is_named(tmp_path):
    with nemo(tmp_path) as (server, config):
        async with opened(config(entity_host=f"{server.url}/elsewhere")) as adapter:
            with pytest.raises(BackendError, match="/elsewhere/v1/customization/configs answered 404"):
                await adapter.health()


# --------------------------------------------------------------------------------------------------------------- never twice


async def test_another_process_finds_the_job_and_its_revision(tmp_path):
    with nemo(tmp_path / "server") as (server, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            spec = await adapter.prepare(collection(), None)
            assert await adapter.find(spec) is None
            ref = await adapter.submit(spec)
        async with opened(config(), tmp_path / "run-1") as adapter:
            assert await adapter.find(spec) == ref == await adapter.submit(spec)
            assert (await adapter.wait(ref)).state is JobState.COMPLETED
        assert len(server.of("POST", "/v1/customization/jobs")) == 1


async def test_the_same_data_are_uploaded_once(tmp_path):
    with nemo(tmp_path / "server") as (server, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            first = await adapter.submit(await adapter.prepare(collection(step=0), None))
            second = await adapter.submit(await adapter.prepare(collection(step=1), None))
        assert first.job_id != second.job_id
        assert first.metadata["revision"] == second.metadata["revision"]
        assert len([request for request in server.requests if "/commit/" in request.path]) == 1


async def test_two_runs_have_two_datasets(tmp_path):
    with nemo(tmp_path / "server") as (_, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            one, other = [await adapter.submit(await adapter.prepare(collection(run), None)) for run in ("run-1", "run-2")]
    assert one.metadata["dataset"] != other.metadata["dataset"]


async def test_data_that_changed_on_disk_are_not_sent(tmp_path):
    with nemo(tmp_path / "server") as (_, config):
        async with opened(config(), tmp_path / "run-1") as adapter:
            spec = await adapter.prepare(collection(), None)
            (tmp_path / "run-1" / spec.payload["files"][0]["place"]).write_text("{}\n")
            with pytest.raises(BackendError, match="not what was prepared"):
                await adapter.submit(spec)


async def test_files_are_where_the_config_says(tmp_path):
    with nemo(tmp_path / "server") as (_, config):
        async with opened(config(dataset_output_dir=str(tmp_path / "out")), tmp_path / "run-1") as adapter:
            await adapter.submit(await adapter.prepare(collection(), None))
    rows = [json.loads(line) for line in (tmp_path / "out" / "run-1" / "training_file.jsonl").read_text().splitlines()]
    assert len(rows) == 8
    assert rows[0].keys() == {"prompt", "chosen_response", "rejected_response"}


# ----------------------------------------------------------------------------------------------------------------- statuses


async def test_unknown_words_and_null_progress_are_shown_and_followed(tmp_path):
    statuses = ("created", "unknown", "rebalancing", "running", "completed")
    seen = []
    with nemo(tmp_path / "server", statuses=statuses, null_progress=True) as (_, config):
        async with opened(config()) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            await adapter.wait(ref, on_status=seen.append)
    assert [status.backend_state for status in seen] == list(statuses)
    assert [status.state for status in seen[1:3]] == [JobState.UNKNOWN, JobState.UNKNOWN]
    assert seen[3].progress is None
    assert seen[3].metrics == {"train_loss": 0.7, "val_loss": 0.75}


async def test_ready_is_an_end(tmp_path):
    with nemo(tmp_path / "server", statuses=("running", "ready")) as (_, config):
        async with opened(config()) as adapter:
            assert (await adapter.result(await trained(adapter))).backend["status"] == "ready"


async def test_a_failed_job_says_why(tmp_path):
    with nemo(tmp_path / "server", statuses=("running", "failed")) as (_, config):
        async with opened(config()) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            status = await adapter.wait(ref)
            assert (status.state, status.message) == (JobState.FAILED, "TrainingJobFailed: CUDA out of memory")
            with pytest.raises(BackendError, match="CUDA out of memory"):
                await adapter.result(ref)


async def test_a_job_that_takes_too_long_goes_on(tmp_path):
    with nemo(tmp_path / "server", statuses=("running",)) as (_, config):
        async with opened(config(job_timeout_seconds=0.1)) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            with pytest.raises(JobGoesOn, match=r"has not ended in 0.1 s: it is running, 0%"):
                await adapter.wait(ref)
            assert (await adapter.status(ref)).state is JobState.RUNNING


async def test_cancelling_waits_until_it_has_stopped_and_leaves_what_has_ended(tmp_path):
    with nemo(tmp_path / "server", statuses=("running",)) as (server, config):
        async with opened(config()) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            await adapter.cancel(ref)
            status = await adapter.status(ref)
            assert (status.state, described(status)) == (JobState.CANCELLED, "cancelled")
            await adapter.cancel(ref)
            with pytest.raises(BackendError, match="cancelled"):
                await adapter.result(ref)
        assert len(server.of("POST", f"/v1/customization/jobs/{ref.job_id}/cancel")) == 1


# --------------------------------------------------------------------------------------------------------------- deployment


async def test_the_workflow_is_sent_to_the_deployed_model(tmp_path):
    with nemo(tmp_path / "server") as (server, config):
        deploying = config(deploy_on_completion=True, deployment_config=IMAGE)
        asked = [{"role": "user", "content": "wrong wrong wrong: right"}]
        async with served_model(server.url) as llm, opened(deploying, tmp_path / "run-1", llm) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            seen = []
            await adapter.wait(ref, on_status=seen.append)
            assert "deployment ready: it is ready" in [status.message for status in seen]
            result = await adapter.result(ref)
            assert adapter.serving()
            reply = await llm.chat(asked)
            adapter.save_state(tmp_path / "checkpoint")
        assert (reply.text, reply.policy) == ("right", result.policy)
        assert result.backend["deployment"]["url"] == f"{server.url}/nim/ns/nat-deployment-run-1/v1"
        async with served_model(server.url) as again, opened(deploying, tmp_path / "run-1", again) as adapter:
            adapter.load_state(tmp_path / "checkpoint")
            assert (await again.chat(asked)).policy == result.policy
        models = [r.json["model"] for r in server.requests if r.path.endswith("/chat/completions")]
        assert models == [result.policy.location] * 2
        assert BASE_MODEL not in models
        assert len(server.of("POST", "/v1/deployment/model-deployments")) == 1


async def test_a_deployment_that_fails_does_not_undo_the_training(tmp_path):
    with nemo(tmp_path / "server", deployment_statuses=("pending", "failed")) as (server, config):
        deploying = config(deploy_on_completion=True, deployment_config=IMAGE)
        async with served_model(server.url) as llm, opened(deploying, tmp_path / "run-1", llm) as adapter:
            ref = await adapter.submit(await adapter.prepare(collection(), None))
            assert (await adapter.wait(ref)).state is JobState.COMPLETED
            with pytest.raises(BackendError, match=r"is trained, but deployment ns/nat-deployment-run-1 ended as failed: CUDA"):
                await adapter.result(ref)


async def test_a_fixed_deployment_name_that_is_taken_is_refused_before_data_are_collected(tmp_path):
    fixed = {**IMAGE, "deployment_name": "mine"}
    with nemo(tmp_path / "server") as (server, config):
        deploying = config(deploy_on_completion=True, deployment_config=fixed)
        async with served_model(server.url) as llm, opened(deploying, tmp_path / "run-1", llm) as adapter:
            await adapter.result(await trained(adapter))
            await adapter.health()  # of the run that it is of
        async with served_model(server.url) as llm, opened(deploying, tmp_path / "run-2", llm) as adapter:
            with pytest.raises(BackendError, match="deployment ns/mine exists and is of ns/nat-deploy-config-run-1"):
                await adapter.health()


async def test_a_local_model_can_not_be_deployed(tmp_path):
    from nat_finetune.testing import ScriptedChatModel

    with nemo(tmp_path) as (_, config):
        deploying = config(deploy_on_completion=True, deployment_config=IMAGE)
        with pytest.raises(ConfigError, match="can't be pointed at"):
            async with opened(deploying, tmp_path / "run-1", ScriptedChatModel(["x"])):
                pass
