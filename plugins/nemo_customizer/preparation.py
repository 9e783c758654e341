"""From a collection to a job that is known in full, and to its files on disk, before anything is sent."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nat_finetune_plugins.nemo_customizer import wire
from nat_finetune_plugins.nemo_customizer.config import NeMoCustomizerTrainerAdapterConfig
from nat_finetune_plugins.nemo_customizer.files import TRAINING, VALIDATION, DataFile, as_payload, write_lines
from nat_finetune_plugins.nemo_customizer.names import dataset_name, job_name
from nat_finetune_plugins.nemo_customizer.rows import RowRules, Rows, rows_of

from nat_finetune.data.seeds import derive_seed
from nat_finetune.types import Collection, JobSpec


class Preparation:
    """Makes specs; any process can submit them, for they name their files."""

    def __init__(self, config: NeMoCustomizerTrainerAdapterConfig, entry: str, seed: int, folder: Path) -> None:
        self._config = config
        self._entry = entry
        self._seed = seed
        self._folder = folder

    def spec(self, collection: Collection, *, version: int) -> JobSpec:
        """The job that makes this version of the policy from a collection; its files are written.

        Raises:
            ConfigError, DataError: the items are not what the service takes.
            OutputError: the files can't be written.
        """
        config, run_id, step = self._config, collection.run_id, collection.step
        rules = RowRules(
            config.hyperparameters.training_type, config.use_full_message_history, config.validation_split, self._seed
        )
        rows = rows_of(collection, rules)
        files = self._write(rows, collection)
        hyperparameters = config.hyperparameters.body(derive_seed(self._seed, "nemo_customizer", "training") % 2**31)
        data = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
        what = [run_id, step, self._entry, config.customization_config, hyperparameters, data]
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]
        repo = f"{config.namespace}/{dataset_name(config.dataset_name, run_id, data)}"
        payload = {
            "version": version,
            "hosts": [config.entity_host, config.datastore_host],
            "dataset": repo,
            "files": as_payload(files),
            "hyperparameters": hyperparameters,
            "notes": list(rows.notes),
        }
        items = len(collection.items) - len(rows.dropped)
        return JobSpec(run_id, step, key, self._entry, items, payload, rows.dropped)

    def job(self, spec: JobSpec) -> wire.Body:
        """What is posted for a spec: under the spec's key, which is that of a further attempt where an earlier one failed."""
        return wire.job_body(
            self._config.customization_config,
            spec.payload["dataset"],
            spec.payload["hyperparameters"],
            name=job_name(spec.run_id, spec.step, spec.key),
            output_model=self._config.output_model,
            fields={wire.KEY_FIELD: spec.key, wire.RUN_FIELD: spec.run_id},
        )

    def find(self, place: str) -> Path:
        """Where a file of a spec is."""
        return self._folder / place

    def _write(self, rows: Rows, collection: Collection) -> list[DataFile]:
        folder = self._data_folder(collection)
        cut = len(rows.training)
        parts = [(TRAINING, rows.training, rows.copies[:cut]), (VALIDATION, rows.validation, rows.copies[cut:])]
        files = []
        for path, items, copies in parts:
            target = folder / Path(path).name
            target.unlink(missing_ok=True)
            if items:
                count, size, digest = write_lines(rows.lines(items, copies), target)
                files.append(DataFile(path, self._place(target), count, size, digest))
        return files

    def _data_folder(self, collection: Collection) -> Path:
        if self._config.dataset_output_dir is not None:
            return Path(self._config.dataset_output_dir).absolute() / collection.run_id
        return self._folder / "datasets" / f"{collection.step:05d}"

    def _place(self, path: Path) -> str:
        """Below the run folder where it is there, so that the folder can be moved."""
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)
