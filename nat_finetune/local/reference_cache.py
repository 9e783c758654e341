"""The reference's log-probabilities, computed once for the same rows and kept in the run folder.

They depend on the untrained model, on what makes the reference another policy than that, on how the model computes, and on the
rows; all of it is in the name under which they are kept.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nat_finetune.data.batches import Floats, Rows
from nat_finetune.errors import OutputError

_NAME = "logprobs"


class ReferenceCache:
    """One file below `folder`: only the rows of the last update are asked for again. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, model_digest: str | None) -> None:
        self._folder = folder
        self._model = model_digest
        self.hits = self.misses = 0

    def get(self, rows: Rows, reference_digest: str) -> Floats | None:
        """Each token's log-probability (nats, 0 where not trained), None where it must be computed."""
        path = self._path(rows, reference_digest)
        if path is None or not path.is_file():
            self.misses += 1
            return None
        try:
            values = load_file(path)[_NAME]
        except (OSError, SafetensorError, KeyError):  # cut off by a crash: computing it again is all that it costs
            self.misses += 1
            return None
        self.hits += 1
        return values

    def put(self, rows: Rows, reference_digest: str, values: Floats) -> None:
        """Keep them in place of those of other rows.

        Raises:
            OutputError: the folder can't be written.
        """
        path = self._path(rows, reference_digest)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(".unfinished")
            save_file({_NAME: np.ascontiguousarray(values)}, temporary)
            for old in path.parent.glob("*.safetensors"):
                old.unlink()
            temporary.replace(path)
        except OSError as error:
            raise OutputError(f"can't write {path}: {error}; free space, then continue with --resume") from error

    def _path(self, rows: Rows, reference_digest: str) -> Path | None:
        if self._folder is None or self._model is None:
            return None
        digest = hashlib.sha256(f"{self._model}\0{reference_digest}\0".encode())
        for values in (rows.token_ids_N, rows.loss_mask_N, rows.starts, *(rows.columns[name] for name in sorted(rows.columns))):
            digest.update(values.tobytes())
        return self._folder / f"{digest.hexdigest()[:32]}.safetensors"
