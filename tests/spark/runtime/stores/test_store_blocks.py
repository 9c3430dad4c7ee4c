"""Blocks of entries held against a dictionary: drawn changes, small and large blocks, both ways to find them."""

import lmdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.values import not_none
from tests.spark.runtime.block_samples import binary

from headrace.errors import StateError
from headrace.spark.runtime.stores import block_kernels, store_blocks
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, TaskStore
from headrace.spark.runtime.stores.store_records import unseal

IDENTITY = StoreIdentity(changelog_topic_id="t", schema_hash="s", boot_id="b")
WRITER = BatchKey(incarnation="i", batch_id=1)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    environment = lmdb.open(str(tmp_path_factory.mktemp("blocks")), max_dbs=1, map_size=1 << 26, sync=False)
    yield environment
    environment.close()


names = st.binary(min_size=1, max_size=3).map(lambda tail: b"k" + tail) | st.binary(min_size=1, max_size=300)
changes = st.dictionaries(names.filter(lambda name: name > store_blocks.FIRST), st.none() | st.binary(max_size=40))


@given(st.lists(changes, max_size=6), st.sampled_from([60, 500, store_blocks.LIMIT]), st.sampled_from([0, 4, 10**6]))
def test_blocks_are_a_dictionary(environment, rounds, limit, few):
    database = environment.open_db(b"blocks")
    with pytest.MonkeyPatch.context() as patch, environment.begin(write=True, db=database) as transaction:
        patch.setattr(store_blocks, "LIMIT", limit)
        patch.setattr(store_blocks, "FILLED", limit * 3 // 4)
        patch.setattr(store_blocks, "FEW", few)
        transaction.drop(database, delete=False)
        wanted: dict[bytes, bytes] = {}
        for change in rounds:
            found = store_blocks.find(transaction, database, binary(sorted(change)))
            assert found.values().to_pylist() == [wanted.get(name) for name in sorted(change)]
            before = len(wanted)
            wanted |= change
            wanted = {name: value for name, value in wanted.items() if value is not None}
            more = store_blocks.put(transaction, database, found, binary([change[name] for name in sorted(change)]))
            assert more == len(wanted) - before
            assert list(store_blocks.entries(transaction, database)) == sorted(wanted.items())
            check_blocks(transaction, database, limit)


@given(
    st.sets(names.filter(lambda name: name > store_blocks.FIRST)),
    st.binary(max_size=3),
    st.binary(max_size=3),
    st.integers(1, 10),
    st.sampled_from([60, store_blocks.LIMIT]),
)
def test_names_between_two_are_found_in_their_order(environment, drawn, first, end, limit, block_limit):
    database = environment.open_db(b"blocks")
    with pytest.MonkeyPatch.context() as patch, environment.begin(write=True, db=database) as transaction:
        patch.setattr(store_blocks, "LIMIT", block_limit)
        patch.setattr(store_blocks, "FILLED", block_limit * 3 // 4)
        transaction.drop(database, delete=False)
        wanted = sorted(drawn)
        store_blocks.put(
            transaction, database, store_blocks.find(transaction, database, binary(wanted)), binary(wanted)
        )
        low, high = b"k" + first, b"k" + end
        between = [name for name in wanted if low <= name < high][:limit]
        found = store_blocks.names_between(transaction, database, low, high, limit)
        assert found.to_pylist() == between
        without = store_blocks.names_between(transaction, database, low, high, limit, without=1)
        assert without.to_pylist() == [name[1:] for name in between]


def check_blocks(transaction, database, limit):
    """None is empty or too long for no reason; each begins where it is kept, the first one before all."""
    previous = b""
    with transaction.cursor(database) as cursor:
        for first, sealed in cursor:
            body = unseal(sealed)
            size = block_kernels.ENTRY_HEADER + int.from_bytes(body[:2], "little") + int.from_bytes(body[2:6], "little")
            name = body[6 : 6 + int.from_bytes(body[:2], "little")]
            assert first <= name
            assert previous < first
            assert len(body) <= limit or len(body) == size, "an entry of its own"
            previous = first


def test_many_entries_fill_their_blocks(tmp_path):
    """Loaded in one go or one after the other, and most of them taken away again."""
    count = 20_000
    keys = [b"user-%07d" % (number * 7919 % 100_003) for number in range(count)]
    store = TaskStore(tmp_path / "s", IDENTITY)
    store.begin_replay(WRITER, 0, 4 * count)
    store.load(WRITER, binary(keys), binary(keys), count)
    assert dict(store.values()) == {key: key for key in keys}
    used = sum(6 + 1 + 2 * len(key) for key in keys)
    assert store.size_bytes() < 1.8 * used
    for begin in range(0, count, 500):
        store.load(WRITER, binary(keys[begin : begin + 500]), binary([b"v" * 20] * 500), count)
    assert (store.count(), set(dict(store.values()).values())) == (count, {b"v" * 20})
    gone = keys[: count - 10]
    store.load(WRITER, binary(gone), pa.nulls(len(gone), pa.binary()), count)
    assert dict(store.values()) == dict.fromkeys(keys[-10:], b"v" * 20)
    assert store.size_bytes() < 10 * 4096 * 3
    store.close()


def test_a_flipped_bit_in_a_block_condemns_the_store(tmp_path):
    store = TaskStore(tmp_path / "s", IDENTITY)
    store.begin_replay(WRITER, 0, 2)
    store.load(WRITER, binary([b"EWR", b"JFK"]), binary([b"one", b"two"]), 2)
    with store._environment.lmdb.begin(write=True, db=store._blocks) as transaction:
        sealed = bytearray(not_none(transaction.get(store_blocks.FIRST)))
        sealed[-1] ^= 1
        transaction.put(store_blocks.FIRST, bytes(sealed))
    with pytest.raises(StateError) as found:
        store.load(WRITER, binary([b"LGA"]), binary([b"three"]), 3)
    assert found.value.code == "state-corrupt"
    assert not store.is_current
    store.close()


@pytest.mark.parametrize("broken", [b"\x05", b"\x01\0\xff\0\0\0k", b"\x09\0\x01\0\0\0kEWR"])
def test_invalid_blocks_are_reported_and_not_read_beyond_their_end(environment, broken):
    database = environment.open_db(b"blocks")
    block = np.frombuffer(broken, np.uint8)
    bounds = np.array([0, len(broken)])
    found = store_blocks.Found(binary([b"kZ"]), [store_blocks.FIRST], np.zeros(1, np.int64), block, bounds)
    with pytest.raises(StateError) as told:
        found.values()
    assert told.value.code == "state-corrupt"
    with environment.begin(write=True, db=database) as transaction, pytest.raises(StateError):
        store_blocks.put(transaction, database, found, binary([b"v"]))
