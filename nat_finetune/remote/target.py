"""The target model where another process serves it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from nat_finetune.errors import BackendError, ConfigError, Problem
from nat_finetune.interfaces import Builder
from nat_finetune.remote.interfaces import ServedChatModel
from nat_finetune.tracing.traced import TracedChatModel
from nat_finetune.types import PolicyRef


async def served_target(builder: Builder) -> ServedChatModel:
    """The target model, which an adapter points at what it has trained.

    Raises:
        ConfigError: it is not behind an endpoint.
    """
    name = builder.target.llm
    traced = await builder.get_llm(name)
    model = traced.inner if isinstance(traced, TracedChatModel) else traced
    if not isinstance(model, ServedChatModel):
        hint = "use `_type: openai` with the base_url where the trained model will be served"
        raise ConfigError(Problem("this model can't be pointed at the one that the backend trains", f"llms.{name}", hint=hint))
    return model


@dataclass(frozen=True, slots=True)
class Served:
    """Where a trained policy is served: what the checkpoint of a remote adapter holds, for `save_state` and `load_state`."""

    policy: PolicyRef
    model: str
    base_url: str | None = None
    """None: where the config says."""

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Served:
        """Read it back.

        Raises:
            BackendError: it is not there, or not what was written.
        """
        path = folder / _FILE
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            return cls(PolicyRef(**value["policy"]), value["model"], value["base_url"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{path} does not say where the trained model is served: {error!r}") from error

    def use(self, model: ServedChatModel, api_key: str | None = None) -> None:
        """Point the target model there."""
        model.served_at(base_url=self.base_url, model=self.model, api_key=api_key, policy=self.policy)


_FILE = "served.json"
