"""The pandas interface of stateful processors: rows of a key as DataFrames, and DataFrames back as Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.types import _check_series_convert_timestamps_internal

from headrace.spark.runtime.operators.processor_rows import GroupedRows, key_values
from headrace.spark.topology.nodes import Transform

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FRAME_ROWS", "frames_of_keys", "keys_of_frames", "table_of_frame"]

FRAME_ROWS = 10_000  # of a DataFrame at most: the default of spark.sql.execution.arrow.maxRecordsPerBatch


def frames_of_keys(groups: GroupedRows) -> Iterator[tuple[bytes, Iterator[pd.DataFrame]]]:
    """Yield each key, and its rows as DataFrames."""
    for key, begin, end in zip(groups.keys, groups.bounds, groups.bounds[1:], strict=False):
        yield key, _frames(groups, int(begin), int(end))


def _frames(groups: GroupedRows, begin: int, end: int) -> Iterator[pd.DataFrame]:
    for at in range(begin, end, FRAME_ROWS):
        yield _frame(groups.rows.slice(at, min(FRAME_ROWS, end - at)), groups.transform.time_zone)


def _frame(rows: pa.Table, time_zone: str) -> pd.DataFrame:
    """Return rows as PySpark passes them: timestamps without a zone, in that of the session."""
    frame = rows.to_pandas(date_as_object=True)
    for field in rows.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            frame[field.name] = frame[field.name].dt.tz_convert(time_zone).dt.tz_localize(None)
    return frame


def keys_of_frames(transform: Transform, keys: list[bytes]) -> list[tuple[Any, ...]]:
    """Return keys of groups as a processor of DataFrames sees them: timestamps are those of pandas."""
    import pandas as pd

    aware = [at for at, (_, kind) in enumerate(transform.group_columns) if kind in ('"timestamp"', '"timestamp_ntz"')]
    found = key_values(transform, keys)
    if not aware:
        return found
    return [
        tuple(
            pd.Timestamp(one.replace(tzinfo=None)) if at in aware and one is not None else one
            for at, one in enumerate(key)
        )
        for key in found
    ]


def table_of_frame(frame: Any, schema: pa.Schema, time_zone: str) -> pa.Table:
    """Return a DataFrame of the processor as Arrow, its columns by their names, or by position if they have none."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise PySparkValueError(
            "Invalid return type. Please make sure that the UDF returns a "
            "pandas.DataFrame when the specified return type is StructType."
        )
    by_name = any(isinstance(name, str) for name in frame.columns)
    missing = [name for name in schema.names if by_name and name not in frame.columns]
    if missing or (not by_name and len(frame.columns) != len(schema)):
        raise PySparkValueError(f"the DataFrame has columns {list(frame.columns)}, outputStructType has {schema.names}")
    columns = [
        _array(frame[field.name] if by_name else frame.iloc[:, at], field.type, time_zone)
        for at, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _array(series: pd.Series, kind: pa.DataType, time_zone: str) -> pa.Array:
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            series = _check_series_convert_timestamps_internal(series, time_zone)
        return pa.Array.from_pandas(series, mask=series.isnull(), type=kind, safe=False)  # nanoseconds of pandas
    try:
        return pa.Array.from_pandas(series, mask=series.isnull(), type=kind)
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        # As PySpark (`arrow_cast`), but a value that does not fit is an error: there it may be cut off.
        return pa.Array.from_pandas(series, mask=series.isnull()).cast(kind)
