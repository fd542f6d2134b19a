"""Pair lists in Parquet: two columns of names and one of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from dasrel.errors import InputError
from dasrel.io.options import Reading
from dasrel.io.readers.pair_list import Part, choose, open_list
from dasrel.io.readers.source import SequentialSource
from dasrel.store.options import Policy
from dasrel.util.text import path_text, shown, some


def open_parquet(path: Path, reading: Reading, kind: str, policy: Policy) -> SequentialSource:
    """Open a list of pairs in a Parquet file; see `open_list`."""
    return open_list(path, reading, kind, policy, _read)


def _read(path: Path, reading: Reading, add: Callable[[Part], None]) -> None:
    name = path_text(path)
    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        described = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: cannot be read as Parquet ({shown(described)})", remedy="write it again") from error
    with file:
        schema = file.schema_arrow
        repeated = [shown(column) for column, count in Counter(schema.names).items() if count > 1]
        if repeated:
            raise InputError(f"{name} has several columns named {some(repeated)}", remedy="rename or drop the repeats")
        chosen = [schema.names[k] for k in choose(path, reading.columns or (1, 2, 3), schema.names, len(schema.names))]
        for column in chosen[:2]:
            if not _is_id(schema.field(column).type):
                raise InputError(
                    f"{name}: column {shown(column)} is of type {schema.field(column).type}",
                    remedy="ids must be text or whole numbers, chosen by {Reading.columns}",
                )
        kind = schema.field(chosen[2]).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
            raise InputError(
                f"{name}: column {shown(chosen[2])} is of type {kind}",
                remedy="values must be numbers, chosen by {Reading.columns}",
            )
        row = 0
        for batch in _batches(file, chosen, name):
            add(_part(batch, chosen, row))
            row += batch.num_rows


def _batches(file: parquet.ParquetFile, chosen: list[str], name: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=1 << 18, columns=chosen)
    except (pa.ArrowException, OSError) as error:
        described = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{name}: damaged Parquet ({shown(described)})", remedy="write it again") from error


def _is_id(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer)
    return any(test(kind) for test in texts)


def _part(batch: pa.RecordBatch, chosen: list[str], row: int) -> Part:
    coded = []
    for column in chosen[:2]:
        names = batch.column(column).cast(pa.string()).fill_null("").dictionary_encode()
        coded.append((names.dictionary.to_pylist(), names.indices.to_numpy()))
    values = batch.column(chosen[2]).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return Part(coded[0], coded[1], values, lambda k: f"row {row + k + 1}")
