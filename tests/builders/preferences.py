"""Preference files as users write them, read by the real loaders and built by the real builder."""

from __future__ import annotations

import json
from typing import Any

import pyarrow
from pyarrow import parquet as pq

from nat_finetune.builders.preference import PreferenceDatasetBuilder, PreferenceDatasetBuilderConfig
from nat_finetune.datasets.files import CSVDatasetConfig, FileDataset, JSONDatasetConfig, JSONLDatasetConfig
from nat_finetune.datasets.json_list import json_array
from nat_finetune.datasets.parquet import ParquetDatasetConfig, parquet
from nat_finetune.datasets.rows import comma_separated, jsonl

FORMS = {
    "jsonl": (JSONLDatasetConfig, jsonl),
    "json": (JSONDatasetConfig, json_array),
    "csv": (CSVDatasetConfig, comma_separated),
    "parquet": (ParquetDatasetConfig, parquet),
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def trl(**changes: Any) -> dict[str, Any]:
    """A record of the conversational kind with an explicit prompt."""
    return {"prompt": [user("q")], "chosen": [says("good")], "rejected": [says("bad")], **changes}


def nemo(*ranked: tuple[Any, Any], **changes: Any) -> dict[str, Any]:
    """A NeMo RL record: (rank, text) of each completion."""
    completions = [{"rank": rank, "completion": [says(text)]} for rank, text in ranked]
    return {"context": [user("q")], "completions": completions, **changes}


def written(folder: Any, content: Any, form: str = "jsonl") -> Any:
    """A file `labels.<form>` of rows (or of a text or bytes, as they are)."""
    path = folder / f"labels.{form}"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif form == "parquet":
        pq.write_table(pyarrow.Table.from_pylist(content), path)
    elif form == "json":
        path.write_text(json.dumps(content), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return path


def reading(folder: Any, content: Any, form: str = "jsonl", dataset: dict[str, Any] | None = None, **config: Any) -> Any:
    """(builder, loader) of a file."""
    config_type, reader = FORMS[form]
    of_file = config_type(file_path=str(written(folder, content, form)), **dataset or {})
    return PreferenceDatasetBuilder(PreferenceDatasetBuilderConfig(dataset=of_file, **config)), FileDataset(of_file, reader)


def built(folder: Any, content: Any, form: str = "jsonl", dataset: dict[str, Any] | None = None, **config: Any) -> list[Any]:
    """What the builder makes of a file."""
    builder, loader = reading(folder, content, form, dataset, **config)
    return list(builder.build(loader.records()))
