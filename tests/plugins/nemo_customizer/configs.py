"""The adapter's config in small, and the stand-in that it talks to."""

from contextlib import contextmanager

from nat_finetune_plugins.nemo_customizer.config import NeMoCustomizerTrainerAdapterConfig

from nat_finetune.testing.nemo_server import NemoScript, nemo_app
from nat_finetune.testing.nemo_server.script import CONFIG
from nat_finetune.testing.serving import serving

HF_TOKEN, API_KEY = "hf-secret-token", "nv-secret-key"


def config(url="http://nemo.test", **changes):
    given = {
        "entity_host": url,
        "datastore_host": url,
        "namespace": "ns",
        "customization_config": CONFIG,
        "poll_interval_seconds": 0.01,
    }
    return NeMoCustomizerTrainerAdapterConfig(**given | changes)


@contextmanager
def nemo(folder, **script):
    """A stand-in that asks for both tokens, and a config for it."""
    made = NemoScript(**{"token": API_KEY, "hf_token": HF_TOKEN} | script)
    with serving(nemo_app(folder, made)) as server:
        yield server, lambda **changes: config(server.url, **{"hf_token": HF_TOKEN, "api_key": API_KEY} | changes)
