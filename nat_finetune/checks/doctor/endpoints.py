"""Do the endpoints answer, as the model that they are asked for, with the log-probabilities that the config counts on?"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from nat_finetune.checks.doctor.finding import Finding, error, note, warning
from nat_finetune.compose import compose, target_of
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import NatFinetuneError
from nat_finetune.llms.openai import OpenAILLMConfig
from nat_finetune.registry import Registry

TIMEOUT = 15.0
"""Seconds for the one small request."""
TOKENS = 4
_PROMPT = "Say yes."
_DATED = re.compile(r"[-@:](\d{4}-?\d{2}-?\d{2}|\d{4}|latest)$")
"""What some services append to the name that they were asked for: the release that answers."""


async def endpoint_findings(config: RunConfig, registry: Registry, used: Collection[str]) -> list[Finding]:
    """Ask each endpoint that the run uses once, with a short deadline and without a second attempt."""
    found: list[Finding] = []
    adapter = config.trainer_adapters.get(config.finetuning.trainer_adapter or "")
    served = {target_of(config).llm} if adapter is not None and adapter.serves_target else set[str]()
    hasty = {
        name: llm.model_copy(update={"request_timeout": TIMEOUT, "max_retries": 0, "do_auto_retry": False})
        for name, llm in config.llms.items()
        if name in used and name not in served and isinstance(llm, OpenAILLMConfig)
    }
    others = [n for n, llm in config.llms.items() if n in used and n not in hasty and not llm.trainable_locally]
    for name in others:
        where = f"trainer_adapters.{config.finetuning.trainer_adapter} serves it: it"
        message = (
            f"{where if name in served else f'`_type: {config.llms[name].component_name}`'} can't be asked apart from a rollout"
        )
        found.append(note("endpoint.not-asked", message, "look at the rollouts below", f"llms.{name}"))
    if not hasty:
        return found
    async with compose(config.model_copy(update={"llms": {**config.llms, **hasty}}), registry) as parts:
        for name, llm in hasty.items():
            try:
                model: Any = (await parts.get_llm(name)).inner
                reply, served = await model.probe(_PROMPT, max_tokens=TOKENS)
            except NatFinetuneError as failure:
                found.append(_failed(name, llm, failure))
                continue
            found += _about(name, llm, reply.logprobs is not None, served, trained=name == target_of(config).llm)
    return found


def _failed(name: str, llm: OpenAILLMConfig, failure: NatFinetuneError) -> Finding:
    key = f"llms.{name}"
    if "no token ids" in str(failure):
        fix = "serve it with vLLM, or train on text (dpo_traj_builder, sft_traj_builder)"
        return error("endpoint.no-logprobs", str(failure), fix, f"{key}.return_token_ids")
    fix = f"check that the server runs, base_url, api_key, and that it serves {llm.model_name!r}"
    return error("endpoint.failed", str(failure), fix, key)


def _about(name: str, llm: OpenAILLMConfig, logprobs: bool, served: str | None, *, trained: bool) -> list[Finding]:
    found = []
    asked_for_logprobs = llm.logprobs or llm.return_token_ids
    if asked_for_logprobs and not logprobs:
        message = "log-probabilities were asked for, and the endpoint returned none"
        fix = "turn them on at the server, or leave `logprobs` out where nothing needs them"
        found.append(error("endpoint.no-logprobs", message, fix, f"llms.{name}.logprobs"))
    if served is not None and served != llm.model_name and _DATED.sub("", served) != llm.model_name:
        message = f"asked for {llm.model_name!r}, it answers as {served!r}"
        if trained:
            message += ": rollouts would be another model's than the one that is trained"
        say = error if trained else warning
        fix = "serve the model (or adapter) under the name that the config asks for, or name the one that is meant"
        found.append(say("endpoint.other-model", message, fix, f"llms.{name}.model_name"))
    return found
