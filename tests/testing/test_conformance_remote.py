"""A right remote adapter passes; each promise has one that breaks it, and is found."""

from __future__ import annotations

import json

import pytest
from nat_finetune_plugins.nemo_customizer.config import NeMoCustomizerTrainerAdapterConfig

from nat_finetune.registry import register_trainer_adapter
from nat_finetune.testing.conformance import ConformanceError, check_remote_adapter, remote
from nat_finetune.testing.items import collection, pair
from nat_finetune.testing.nemo_server import nemo_app
from nat_finetune.testing.serving import serving
from nat_finetune.types import JobState
from tests.fixtures.rehearsal.rehearsal_plugin import RehearsalAdapterConfig, rehearsal_adapter
from tests.fixtures.rehearsal.rehearsal_server import rehearsal_app

TOKEN = "tok-4711"


class FaultyConfig(RehearsalAdapterConfig, name="faulty_rehearsal"):
    """A rehearsal adapter with one fault."""

    fault: str


class Faulty:
    def __init__(self, inner, fault):
        self.inner, self.fault = inner, fault

    def __getattr__(self, name):
        return self.inner.__getattribute__(name)

    async def health(self):
        await self.inner.health()

    async def find(self, spec):
        if self.fault == "finds nothing":
            return None
        return self.inner._ref(spec, "job-1") if self.fault == "finds anything" else await self.inner.find(spec)

    async def submit(self, spec):
        if self.fault == "does not look":
            job = await self.inner._service.post("jobs", json={"name": spec.key, "rows": spec.payload["rows"]})
            return self.inner._ref(spec, job["id"])
        return await self.inner.submit(spec)

    async def prepare(self, collection, reference):
        spec = await self.inner.prepare(collection, reference)
        if self.fault == "writes the token":
            spec.payload["token"] = TOKEN
        return spec

    async def cancel(self, ref):
        await self.inner.cancel(ref)

    async def wait(self, ref, *, on_status=None):
        return await self.inner.wait(ref, on_status=on_status)

    async def status(self, ref):
        return await self.inner.status(ref)

    async def logs(self, ref):
        return await self.inner.logs(ref)

    async def result(self, ref):
        if self.fault == "results of all":
            return await self.inner.result(ref) if (await self.status(ref)).state is JobState.COMPLETED else self.last
        self.last = await self.inner.result(ref)
        return self.last

    last = None

    def serving(self):
        return self.inner.serving()

    def save_state(self, folder):
        self.inner.save_state(folder)

    def load_state(self, folder):
        self.inner.load_state(folder)


@register_trainer_adapter(config_type=FaultyConfig)
async def faulty_rehearsal(config, builder):
    async for adapter in rehearsal_adapter(config, builder):
        yield Faulty(adapter, config.fault)


def items():
    return collection(*(pair("0 1", f"{n}", text=f"move {n}", example=n) for n in range(4)))


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(rehearsal_app(tmp_path)) as running:
        yield running, lambda: len(json.loads((tmp_path / "state.json").read_text())["jobs"]) if any(tmp_path.iterdir()) else 0


def test_a_right_one_passes(server):
    running, jobs = server
    config = RehearsalAdapterConfig(host=running.url, token=TOKEN)
    assert check_remote_adapter(config, items, jobs=jobs) == list(remote.CHECKS)


def test_the_shipped_adapter_of_a_service_conforms(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(nemo_app(tmp_path)) as running:
        config = NeMoCustomizerTrainerAdapterConfig(
            entity_host=running.url,
            datastore_host=running.url,
            namespace="ns",
            hf_token=TOKEN,
            customization_config="meta/llama-3.1-8b-instruct@v1.0.0+A100",
            hyperparameters={"finetuning_type": "lora"},
            poll_interval_seconds=0.01,
        )
        check_remote_adapter(config, items, jobs=lambda: len(running.of("POST", "/v1/customization/jobs")))


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("finds nothing", "starts a job once, whatever process asks: another process does not find the job"),
        ("does not look", "starts a job once, whatever process asks: submitted three times"),
        ("finds anything", "finds no job that was never sent"),
        ("results of all", "cancels"),
        ("writes the token", "can be written down, without secrets"),
    ],
)
def test_a_broken_promise_is_found(server, fault, promise):
    running, jobs = server
    with pytest.raises(ConformanceError) as caught:
        check_remote_adapter(FaultyConfig(host=running.url, token=TOKEN, fault=fault), items, jobs=jobs)
    assert any(problem.startswith(promise) for problem in caught.value.problems), caught.value


def test_one_that_does_not_say_so(server, monkeypatch):
    running, jobs = server
    monkeypatch.setattr(RehearsalAdapterConfig, "remote", False)
    with pytest.raises(ConformanceError, match="its config must say"):
        check_remote_adapter(RehearsalAdapterConfig(host=running.url), items, jobs=jobs)
