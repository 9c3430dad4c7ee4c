"""Names of a stateful processor's entries: numbers in the order of time, keys that fit the store."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.runtime.stores.store_names import CLOCK, EXPIRY, LONGEST_KEY, short_key, sortable

NUMBERS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(one=NUMBERS, other=NUMBERS)
def test_bytes_of_numbers_are_in_the_order_of_the_numbers(one: int, other: int) -> None:
    assert (sortable(one) < sortable(other)) == (one < other)
    assert len(sortable(one)) == 8


@given(keys=st.sets(st.binary(max_size=LONGEST_KEY + 40), max_size=20))
def test_different_keys_have_different_names_which_fit(keys: set[bytes]) -> None:
    names = {short_key(key) for key in keys}
    assert len(names) == len(keys)
    assert all(len(name) <= LONGEST_KEY for name in names)


def test_a_key_of_the_longest_length_is_its_own_name() -> None:
    longest = b"k" * LONGEST_KEY
    assert short_key(longest) == longest
    assert short_key(longest + b"k") != longest + b"k"


def test_kinds_of_entries_are_in_order_with_the_clock_in_front() -> None:
    assert sorted([EXPIRY, CLOCK]) == [CLOCK, EXPIRY]
