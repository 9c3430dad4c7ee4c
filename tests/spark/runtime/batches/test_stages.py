"""Stages: how Spark's record batches become tables for the operators."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.runtime.batches import stages


@pytest.fixture(autouse=True, scope="module")
def small_tables() -> object:
    """Bounds that a few rows reach."""
    patched = pytest.MonkeyPatch()
    patched.setattr(stages, "TABLE_ROWS", 5)
    patched.setattr(stages, "TABLE_BYTES", 64)
    yield
    patched.undo()


def batches_of(sizes: list[int]) -> list[pa.RecordBatch]:
    numbers = iter(range(sum(sizes)))
    return [pa.record_batch({"n": pa.array([next(numbers) for _ in range(size)], pa.int32())}) for size in sizes]


@given(st.lists(st.integers(0, 7), max_size=20))
def test_tables_hold_all_rows_in_their_order(sizes: list[int]) -> None:
    tables = list(stages._gathered(batches_of(sizes)))
    assert [n for table in tables for n in table.column("n").to_pylist()] == list(range(sum(sizes)))
    assert all(table.num_rows for table in tables)
    assert all(table.num_rows >= 5 for table in tables[:-1])
    assert all(table.column("n").num_chunks == 1 for table in tables)


def test_a_table_is_handed_on_when_its_bytes_are_many() -> None:
    large = pa.record_batch({"text": ["x" * 100]})
    assert [table.num_rows for table in stages._gathered([large, large, large])] == [1, 1, 1]


def test_a_table_is_handed_on_before_the_next_batch_is_read() -> None:
    """Memory holds one table, not the whole micro-batch."""
    read = []

    def reading() -> object:
        for batch in batches_of([5, 5, 5]):
            read.append(batch)
            yield batch

    tables = stages._gathered(reading())  # type: ignore[arg-type]
    next(tables)
    assert len(read) == 1
