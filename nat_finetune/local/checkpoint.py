"""A checkpoint is a folder that is either whole or not there: trained weights, AdamW's state and the counters.

    trained.safetensors     the float32 weights that train (with LoRA: the adapter's only)
    optimiser.safetensors   AdamW's state of each of them
    reference.safetensors   weights of the reference policy, where it is not the untrained one
    trainer.json            version, optimiser steps, digest of the weights as the model holds them

Nothing else is needed to continue bit for bit on a CPU: whatever an update draws at random comes from seeds that its step
names.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from nat_finetune.errors import BackendError, OutputError
from nat_finetune.local.optimiser import Optimiser
from nat_finetune.local.weights import Reference, TrainedWeights

FORMAT = 1
TRAINED, OPTIMISER, COUNTERS = "trained.safetensors", "optimiser.safetensors", "trainer.json"
REFERENCE = "reference.safetensors"


@dataclass(frozen=True, slots=True)
class Counters:
    """What a checkpoint says besides tensors."""

    version: int
    """Of the policy."""
    optimiser_steps: int
    digest: str
    """`TrainedWeights.digest` of what was saved."""
    format: int = FORMAT
    reference_version: int = 0
    """Version of the reference policy; 0: the untrained one, of which nothing is saved."""
    reference_digest: str = ""


def save_checkpoint(
    folder: Path, weights: TrainedWeights, optimiser: Optimiser, *, version: int, reference: Reference | None = None
) -> Counters:
    """Write a checkpoint beside `folder`, bring it to the disk, and put it in `folder`'s place, which may be empty.

    Raises:
        OutputError: the disk is full, or not to be written to; `folder` is as it was.
    """
    counters = Counters(version=version, optimiser_steps=optimiser.steps, digest=weights.digest())
    if reference is not None and reference.version:
        counters = replace(counters, reference_version=reference.version, reference_digest=reference.digest)
    unfinished = folder.with_name(folder.name + ".unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_file(_plain(weights.tensors()), unfinished / TRAINED)
        save_file(_plain(optimiser.tensors()), unfinished / OPTIMISER)
        if reference is not None and reference.version:
            save_file(_plain(reference.tensors()), unfinished / REFERENCE)
        (unfinished / COUNTERS).write_text(json.dumps(asdict(counters), indent=1) + "\n", encoding="utf-8")
        for path in (*unfinished.iterdir(), unfinished):
            _to_disk(path)
        _replace(unfinished, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OutputError(
            f"can't write the checkpoint {folder}: {error}; free space or give another --output-dir, then continue with "
            "--resume"
        ) from error
    return counters


def load_checkpoint(
    folder: Path, weights: TrainedWeights, optimiser: Optimiser, reference: Reference | None = None
) -> Counters:
    """Put a checkpoint's weights into the model, AdamW's state and counters into the optimiser, and take up its reference.

    Raises:
        BackendError: the folder holds no whole checkpoint, or one of another model; the model may be half loaded.
    """
    try:
        counters = Counters(**json.loads((folder / COUNTERS).read_text(encoding="utf-8")))
        trained, state = load_file(folder / TRAINED), load_file(folder / OPTIMISER)
        held = load_file(folder / REFERENCE) if counters.reference_version else {}
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise BackendError(
            f"{folder} is no checkpoint that can be read ({error}): resume from another one, or start the run anew"
        ) from error
    if counters.format != FORMAT:
        raise BackendError(f"{folder} has checkpoint format {counters.format}, this version reads {FORMAT}: start the run anew")
    weights.load(trained)
    optimiser.load(state, steps=counters.optimiser_steps)
    if weights.digest() != counters.digest:
        raise BackendError(
            f"{folder}: the weights are not those that were saved (digest {weights.digest()[:12]}, expected "
            f"{counters.digest[:12]}): the file is damaged, or the model has another dtype now; restore either"
        )
    if reference is not None and held:
        reference.load(held, counters.reference_version, counters.reference_digest)
    return counters


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(source: Path, folder: Path) -> None:
    """Rename over a folder that is not there or empty; a full one is moved away first, and removed at the end."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    source.rename(folder)
    _to_disk(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
