"""A backend that another process is: whether it can train at all, and whether what samples is what it trained."""

from __future__ import annotations

from nat_finetune.errors import BackendError
from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.remote.interfaces import RemoteAdapter
from nat_finetune.runstore import RunStore
from nat_finetune.types import PolicyRef


async def require_ready(adapter: TrainerAdapter, steps_done: int) -> None:
    """Before anything is sampled or paid for: that the backend, which another process is, could take what comes of it.

    Raises:
        NatFinetuneError: as the adapter's `health`.
    """
    if steps_done == 0 and isinstance(adapter, RemoteAdapter):
        await adapter.health()


def unserved(adapter: TrainerAdapter, policy: PolicyRef, store: RunStore) -> str | None:
    """Why a trained policy can't be sampled from, and what to do; None where it can."""
    if policy.version == 0 or not isinstance(adapter, RemoteAdapter) or adapter.serving():
        return None
    reason = f"llms.{policy.llm} does not reach it"
    results = [store.update_result(int(path.stem)) for path in sorted((store.folder / "updates").glob("[0-9]*.json"))]
    told = results[-1].backend.get("not_served") if results and results[-1] is not None else None
    return f"the trained model is not served: {told or reason}"


def require_served(adapter: TrainerAdapter, policy: PolicyRef, store: RunStore) -> None:
    """Before rollouts to train on.

    Raises:
        BackendError: they would come from a policy that is not the one that they are recorded as.
    """
    why = unserved(adapter, policy, store)
    if why is not None:
        raise BackendError(
            f"{why}. Further rollouts to train on would be those of the untrained model: train in one step (num_epochs: 1, no "
            "examples_per_step, one round), or have the adapter serve what it trains"
        )
