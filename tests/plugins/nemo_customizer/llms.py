"""The target model behind the stand-in's endpoint."""

from contextlib import asynccontextmanager
from random import Random

from nat_finetune.llms.endpoint import Endpoint
from nat_finetune.llms.openai import OpenAIChatModel, OpenAILLMConfig, chat_url
from nat_finetune.remote.sending import RetryPolicy
from nat_finetune.testing.nemo_server.script import BASE_MODEL


@asynccontextmanager
async def served_model(url):
    """As `_type: openai` makes it."""
    config = OpenAILLMConfig(model_name=BASE_MODEL, base_url=f"{url}/nim/base/v1")
    retry = RetryPolicy(connection=1, answer=1)
    endpoint = Endpoint(chat_url(config.base_url), key=None, timeout=10, retry=retry, verify_ssl=True, jitter=Random(0))
    yield OpenAIChatModel("policy", config, endpoint)
    await endpoint.close()
