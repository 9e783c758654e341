"""One update as a job of the adapter: written down before it is sent, so that what a crash leaves behind is known."""

from __future__ import annotations

import asyncio

from nat_finetune.interfaces import TrainerAdapter
from nat_finetune.runstore import RunStore
from nat_finetune.types import Collection, Dropped, PolicyRef, UpdateResult


async def run_job(
    adapter: TrainerAdapter, store: RunStore, collection: Collection, reference: PolicyRef | None
) -> tuple[UpdateResult, tuple[Dropped, ...]]:
    """What the update did, and which items the backend could not take; cancelled when the waiting is.

    Raises:
        NatFinetuneError: as the adapter ended it.
    """
    name = f"jobs/{collection.step:05d}.json"
    await adapter.health()
    spec = await adapter.prepare(collection, reference)
    store.write_json(name, {"spec": spec, "ref": None})
    ref = await adapter.submit(spec)
    store.write_json(name, {"spec": spec, "ref": ref})
    try:
        await adapter.wait(ref)
    except asyncio.CancelledError:
        await adapter.cancel(ref)
        raise
    result = await adapter.result(ref)
    store.save_update(collection.step, result)
    return result, spec.dropped
