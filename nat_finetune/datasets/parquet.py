"""`_type: parquet`: rows of a Parquet file, read as a stream; needs `pip install 'nat-finetune[parquet]'`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from nat_finetune.datasets.files import FileDataset, FileDatasetConfig
from nat_finetune.datasets.rows import BadRow, Counts, Row, opened
from nat_finetune.errors import DataError
from nat_finetune.interfaces import Builder, DatasetLoader
from nat_finetune.registry import register_dataset_loader

ROWS = 256
"""Rows that are read at once."""


class ParquetDatasetConfig(FileDatasetConfig, name="parquet"):
    """Examples from a Parquet file; a line in a message is a row, counted from 1."""


def parquet(path: Path, counts: Counts) -> Iterator[Row | BadRow]:
    """The rows of a Parquet file."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{path}: Parquet files need pyarrow: pip install 'nat-finetune[parquet]'") from None
    row = 0
    with opened(path) as source:
        try:
            with ParquetFile(source, buffer_size=1 << 20, pre_buffer=False) as file:
                names = file.schema_arrow.names
                twice = sorted({name for name in names if names.count(name) > 1})
                if twice:
                    raise DataError(f"{path}: the file has a column twice: {', '.join(twice)}")
                for batch in file.iter_batches(ROWS, use_threads=False):
                    for values in batch.to_pylist():
                        row += 1
                        yield Row(row, values)
        except (ArrowException, OSError) as error:
            raise DataError(f"{path}: can't be read as Parquet behind row {row}: {error}") from error


@register_dataset_loader(config_type=ParquetDatasetConfig)
async def parquet_dataset(config: ParquetDatasetConfig, builder: Builder) -> AsyncIterator[DatasetLoader]:
    """Make the loader."""
    yield FileDataset(config, parquet)
