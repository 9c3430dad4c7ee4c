"""The newest value of each key in a bulk load."""

from hypothesis import given
from hypothesis import strategies as st
from tests.spark.runtime.block_samples import binary

from headrace.spark.runtime.stores.bulk_load import name_of_key, newest_values

changes = st.lists(st.tuples(st.binary(max_size=12), st.none() | st.binary(max_size=4)), max_size=60)


@given(changes, st.binary(max_size=500))
def test_newest_values_are_those_of_a_dictionary(items, prefix):
    keys, values = binary([prefix + key for key, _ in items]), binary([value for _, value in items])
    wanted = {name_of_key(prefix + key): value for key, value in items}
    names, newest = (column.to_pylist() for column in newest_values(keys, values))
    assert dict(zip(names, newest, strict=True)) == wanted
    assert names == sorted(wanted)


def test_records_without_a_key_change_nothing():
    assert newest_values(binary([None, b"a", None]), binary([b"x", b"y", None])) == (binary([b"ka"]), binary([b"y"]))
    assert newest_values(binary([None]), binary([b"x"])) == (binary([]), binary([]))


def test_newest_values_of_a_slice():
    keys, values = binary([b"a", b"b", b"c", b"b"]), binary([b"1", b"2", b"3", b"4"])
    assert newest_values(keys[1:], values[1:]) == (binary([b"kb", b"kc"]), binary([b"4", b"3"]))
