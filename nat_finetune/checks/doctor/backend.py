"""Is the backend there that would train? One in another process, that is; this process is looked at as model and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nat_finetune.checks.doctor.chosen import adapter_of
from nat_finetune.checks.doctor.finding import Finding, error
from nat_finetune.compose import compose
from nat_finetune.config.schema import RunConfig
from nat_finetune.errors import NatFinetuneError
from nat_finetune.registry import Registry
from nat_finetune.remote.interfaces import RemoteAdapter


@dataclass(frozen=True, slots=True)
class Backend:
    """The adapter of a backend that another process is, as the config names it."""

    FAULTS: ClassVar[tuple[str, ...]] = ("backend.missing", "backend.failed")

    config: RunConfig
    key: str
    type: str
    local_model: bool
    """Whether making the adapter loads the target model."""
    samples: bool
    """Whether rollouts need it."""

    @property
    def area(self) -> str:
        """What it is called among what was looked at."""
        return f"backend ({self.type})"

    def missing(self) -> list[Finding]:
        """What files tell of it, without starting or asking anything."""
        adapter = adapter_of(self.config)
        lacks = None if adapter is None else adapter.lacks()
        if lacks is None:
            return []
        return [error("backend.missing", lacks.message, lacks.hint or "see the message", f"{self.key}.{lacks.key}")]

    async def failing(self, registry: Registry) -> list[Finding]:
        """What the backend itself answers when it is asked whether it could train."""
        try:
            async with compose(self.config, registry) as parts:
                adapter = await parts.get_trainer_adapter()
                if isinstance(adapter, RemoteAdapter):
                    await adapter.health()
        except NatFinetuneError as failure:
            fix = "see the message: a run would end with it before anything is sampled"
            return [error("backend.failed", str(failure), fix, self.key)]
        return []


def backend_of(config: RunConfig) -> Backend | None:
    """The backend of a run; None where this process trains."""
    adapter = adapter_of(config)
    if adapter is None or not adapter.remote:
        return None
    key = f"trainer_adapters.{config.finetuning.trainer_adapter}"
    return Backend(config, key, adapter.component_name, adapter.needs_local_model, adapter.serves_target)
