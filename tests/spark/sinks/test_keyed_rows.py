"""Rows that replace each other by key: the last one of each key stays, and null is a key."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.sinks.interface import DELETED_COLUMN
from headrace.spark.sinks.keyed_rows import newest_rows, rows_of_other_keys, rows_that_stay

KEYS = st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([0, 1, None]))
SCHEMA = pa.schema([("k", pa.string()), ("d", pa.int64()), ("at", pa.int64())])


def table(keys, start=0):
    rows = [{"k": k, "d": d, "at": start + at} for at, (k, d) in enumerate(keys)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@given(st.lists(KEYS, max_size=30))
def test_the_newest_rows_are_those_of_a_dictionary(keys):
    newest = {key: at for at, key in enumerate(keys)}
    found = newest_rows(table(keys), ["k", "d"]).to_pylist()
    assert [row["at"] for row in found] == sorted(newest.values())
    assert {(row["k"], row["d"]): row["at"] for row in found} == newest


@given(st.lists(st.booleans(), max_size=30))
def test_rows_that_stay_are_no_deletions(deleted):
    rows = table([("a", 0)] * len(deleted))
    assert rows_that_stay(rows) is rows
    found = rows_that_stay(rows.append_column(DELETED_COLUMN, pa.array(deleted, pa.bool_())))
    assert found.schema == SCHEMA
    assert found["at"].to_pylist() == [at for at, is_deleted in enumerate(deleted) if not is_deleted]


@given(st.lists(KEYS, max_size=30), st.lists(KEYS, max_size=5))
def test_rows_of_other_keys_stay_in_their_order(keys, replaced):
    found = rows_of_other_keys(table(keys), table(replaced, 100), ["k", "d"]).to_pylist()
    assert [row["at"] for row in found] == [at for at, key in enumerate(keys) if key not in set(replaced)]
