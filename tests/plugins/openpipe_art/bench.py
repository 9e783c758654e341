"""An adapter on a test server, and groups for it to train on."""

from contextlib import asynccontextmanager, contextmanager

from nat_finetune_plugins.openpipe_art.components import ArtTrajBuilder
from nat_finetune_plugins.openpipe_art.config import ArtTrainerAdapterConfig, ArtTrajBuilderConfig

from nat_finetune.llms.openai import OpenAILLMConfig
from nat_finetune.testing.art_server import art_app
from nat_finetune.testing.parts import REWARD, TARGET, FakeBuilder, made
from nat_finetune.testing.rollouts import FakeRecorder
from nat_finetune.testing.serving import serving
from nat_finetune.types import Collection, ModelCall

SECRET = "sk-the-endpoints-key"
PROMPT = "1 2 +3 -4 5"
GENERATIONS = ("0.4", "0.5")


@contextmanager
def art(folder, generation="0.5", misbehave=()):
    """A server, and its app's state."""
    app = art_app(folder, generation, misbehave=misbehave)
    with serving(app) as server:
        yield server, app.state.art


def config(url, training=None, patience=0.3, **backend):
    port = int(url.rsplit(":", 1)[1])
    given = {"ip": "127.0.0.1", "port": port, "name": "m", "project": "p", "base_model": "base", "api_key": SECRET, **backend}
    training = {"learning_rate": 2e-5, "beta": 0.25, **(training or {})}
    return ArtTrainerAdapterConfig.model_validate({"backend": given, "training": training, "lost_stream_seconds": patience})


@asynccontextmanager
async def connected(adapter_config, folder):
    """The adapter, and the model whose calls it directs."""
    llm = OpenAILLMConfig(model_name="base", base_url="http://127.0.0.1:9/v1", logprobs=True, max_retries=0)
    async with made(llm, FakeBuilder(entry_name="policy")) as policy:
        builder = FakeBuilder(llms={"policy": policy}, folder=folder, entry_name="art")
        async with made(adapter_config, builder) as adapter:
            yield adapter, policy


def groups(step=0):
    """A group whose better half said 1."""
    rollouts = []
    for number in range(4):
        record = FakeRecorder("e", generation=number)
        call = record.model_call(str(1 + number % 2), prompt=PROMPT)
        ids = {"prompt_ids": None, "completion_ids": (number % 2, 12), "logprobs": (-2.5, 0.0)}
        rollout = record.rollout(rewards={REWARD: 1.0 - number % 2})
        rollouts.append(_with(rollout, call, ids))
    items = tuple(ArtTrajBuilder(ArtTrajBuilderConfig(num_generations=4), TARGET).build(rollouts))
    return Collection(items, "run", step, "policy")


def _with(rollout, call, ids):
    from dataclasses import replace

    events = tuple(replace(e, **ids) if isinstance(e, ModelCall) and e.seq == call.seq else e for e in rollout.events)
    return replace(rollout, events=events)


async def trained(adapter, step=0):
    """One update, from health to result."""
    await adapter.health()
    spec = await adapter.prepare(groups(step), None)
    ref = await adapter.submit(spec)
    seen = []
    await adapter.wait(ref, on_status=seen.append)
    return spec, ref, seen, await adapter.result(ref)
