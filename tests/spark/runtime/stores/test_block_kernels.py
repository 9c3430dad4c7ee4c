"""Kernels of blocks: the order of keys, and the block that a name belongs to."""

from hypothesis import given
from hypothesis import strategies as st
from tests.spark.runtime.block_samples import binary

from headrace.spark.runtime.stores import block_kernels, bulk_load
from headrace.spark.runtime.stores.byte_spans import spans_of


@given(st.lists(st.binary(max_size=12), unique=True), st.binary(max_size=20))
def test_the_order_of_keys_is_that_of_their_bytes(keys, prefix):
    given_keys = binary([prefix + key for key in keys])
    order = bulk_load.order_of_keys(given_keys)
    there = given_keys if order is None else given_keys.take(order)
    assert there.to_pylist() == sorted(given_keys.to_pylist())
    assert (order is None) == (given_keys.to_pylist() == sorted(given_keys.to_pylist()))


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1), st.sets(st.binary(min_size=1, max_size=4)))
def test_each_name_falls_into_the_last_block_before_it(drawn, firsts):
    ordered = sorted(set(drawn))
    blocks = [b"", *sorted(firsts)]
    found = block_kernels.block_of_each(*spans_of(binary(ordered)), *spans_of(binary(blocks)))
    assert found.tolist() == [sum(first <= name for first in blocks) - 1 for name in ordered]
