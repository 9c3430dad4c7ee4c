"""The replica process against our broker: transactions in a changelog, its death, a topic made anew."""

import os
import signal
import threading

import confluent_kafka
import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.harness.values import not_none

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.spark.runtime.stores.replay import Replay, changelog_reader, replay_all
from headrace.spark.runtime.stores.replicas import Replicas
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, TaskStore, position_on_disk
from headrace.spark.runtime.stores.store_files import path_of_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CHANGELOG = "app-counts-changelog"
PARTITIONS = 2
BOOT = "this boot"


broker = broker_fixture(scope="module")


@pytest.fixture
def changelog(broker):
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([CHANGELOG], missing_ok=True)
        admin.create_topics({CHANGELOG: PARTITIONS}, configs={CHANGELOG: {"cleanup.policy": "compact"}})
    return CHANGELOG


def identity(broker):
    with NetworkClient(broker.bootstrap_servers) as client:
        topic = client.known_topics([CHANGELOG], refresh=True).topics[CHANGELOG]
    return StoreIdentity(changelog_topic_id=str(topic.topic_id), schema_hash="s", boot_id=BOOT)


@pytest.fixture
def replicas(broker, changelog, tmp_path):
    store = {"name": "counts", "changelog_topic": changelog, "schema_hash": "s", "source_topics": ["in"]}
    running = Replicas(
        {
            "bootstrap_servers": broker.bootstrap_servers,
            "client_id": "replicas",
            "state_dir": str(tmp_path),
            "boot_id": BOOT,
            "stores": {"counts": [store]},
        }
    )
    yield running
    running.close()


class Writer:
    """Changes in transactions, as an application writes them."""

    def __init__(self, broker, name):
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
        )
        self._producer.init_transactions(30)

    def begin(self, partition=0, **changes):
        self._producer.begin_transaction()
        for key, value in changes.items():
            self._producer.produce(CHANGELOG, key=key, value=value, partition=partition)
        self._producer.flush(30)

    def commit(self, partition=0, **changes):
        self.begin(partition, **changes)
        self._producer.commit_transaction(30)

    def abort(self, partition=0, **changes):
        self.begin(partition, **changes)
        self.end()

    def end(self):
        self._producer.abort_transaction(30)


def content(broker, directory, partition=0):
    """What a store holds, once nobody else writes to it."""
    store = TaskStore(path_of_store(directory, "counts", partition, "counts"), identity(broker))
    try:
        assert store.rebuilt is None
        return {key.decode(): value.decode() for key, value in store.values()}, store.position()
    finally:
        store.close()


def brought_near(replicas, partitions=(0,)):
    tasks = {partition: {f"in-{partition}@one": 7} for partition in partitions}
    return replicas.catch_up("counts", tasks, lambda: False).records


def test_aborted_and_open_transactions_are_no_state(broker, replicas, tmp_path):
    writer = Writer(broker, "w")
    writer.commit(a="1", b="1")
    writer.abort(a="99", c="99")
    writer.commit(b="2", d=None)
    writer.commit(e="5")
    writer.commit(e=None)
    other = Writer(broker, "other")
    other.begin(a="77")
    assert brought_near(replicas) > 0
    values, position = content(broker, tmp_path)
    assert values == {"a": "1", "b": "2"}
    assert position.restoring

    other.end()
    writer.commit(f="6")
    brought_near(replicas)
    values, position = content(broker, tmp_path)
    assert values == {"a": "1", "b": "2", "f": "6"}
    with Admin(broker.bootstrap_servers) as admin:
        assert position.changelog_offset == admin.list_offsets({(CHANGELOG, 0): "latest"})[CHANGELOG, 0].offset


def test_a_restore_waits_for_open_transactions(broker, changelog, tmp_path):
    """The end is the log's, not the last stable offset: behind an open transaction may lie committed records."""
    open_one, writer = Writer(broker, "open"), Writer(broker, "behind")
    open_one.begin(a="77")
    writer.commit(b="2")
    store = TaskStore(tmp_path / "s", identity(broker))
    key = BatchKey(incarnation="restore", batch_id=1)
    with NetworkClient(broker.bootstrap_servers) as client, Admin(broker.bootstrap_servers) as admin:
        where = (changelog, 0)
        end = admin.list_offsets({where: "latest"})[where].offset
        assert admin.list_offsets({where: "latest"}, isolation_level="read_committed")[where].offset == 0
        replay = Replay(store=store, changelog=where, writer=key, position=store.begin_replay(key, 0, end))
        ending = threading.Timer(0.5, open_one.end)
        ending.start()
        assert replay_all(changelog_reader(client), [replay], {where: end})
        ending.join()
    assert dict(store.values()) == {b"b": b"2"}
    assert not_none(store.position()).changelog_offset == end
    store.close()


def test_copies_follow_and_are_handed_over_without_a_replay(broker, replicas, tmp_path):
    writer = Writer(broker, "w")
    for partition in range(PARTITIONS):
        writer.commit(partition, **{f"k{n}": str(n) for n in range(50)})
    replicas.follow([("counts", 0), ("counts", 1)])

    def current():
        found = replicas.progress()
        return len(found) == PARTITIONS and all(copy.records >= 50 and copy.remaining == 0 for copy in found.values())

    wait_until(current, "both copies are made")
    writer.commit(0, k1="new")
    wait_until(lambda: replicas.progress()[("counts", 0)].records == 51, "the copy follows")
    assert replicas.progress()[("counts", 0)].end == replicas.progress()[("counts", 0)].position
    assert brought_near(replicas) == 0
    assert content(broker, tmp_path)[0]["k1"] == "new"
    wait_until(lambda: set(replicas.progress()) == {("counts", 1)}, "the task that was opened is not followed any more")
    assert replicas.restored_records >= 101


def test_a_store_that_stands_where_the_group_does_is_left_alone(broker, replicas, tmp_path):
    writer = Writer(broker, "w")
    writer.commit(a="1")
    store = TaskStore(path_of_store(tmp_path, "counts", 0, "counts"), identity(broker))
    stands = StorePosition(
        batch=BatchKey(incarnation="run", batch_id=3), input_offsets={"in-0@one": 7}, changelog_offset=2
    )
    taken = BatchKey(incarnation="replay", batch_id=1)
    store.begin_replay(taken, 2, 2)
    store.assign_position(stands.batch, stands.input_offsets, over=not_none(store.position()))
    store.close()
    # The process starts meanwhile, which takes longer than one call waits where the machine is busy.
    assert wait_until(lambda: replicas.find([("counts", 0), ("counts", 1)]), "stores on disk") == {("counts", 0): 2}
    assert brought_near(replicas) == 0
    assert position_on_disk(path_of_store(tmp_path, "counts", 0, "counts"), identity(broker)) == stands


def test_stores_are_made_ready_for_the_first_micro_batch(broker, replicas, tmp_path):
    writer = Writer(broker, "w")
    writer.commit(0, a="1", b="2")
    for number in (1, 2):  # nothing here, then a store that stands there
        batch = BatchKey(incarnation="run", batch_id=number)
        brought = replicas.catch_up("counts", {0: {"in-0@one": 7, "other-0@two": 3}}, lambda: False, batch)
        assert (brought.records, brought.restored[0].keys) == (2 if number == 1 else 0, 2)
        stands = StorePosition(batch=batch, input_offsets={"in-0@one": 7}, changelog_offset=3)
        assert position_on_disk(path_of_store(tmp_path, "counts", 0, "counts"), identity(broker)) == stands
    replicas.request_offsets([("counts", 0), ("counts", 1)])
    assert wait_until(replicas.take_offsets, "offsets") == {("counts", 0): 3}


def test_tasks_behind_an_open_transaction_are_left_to_the_restore_stage(broker, replicas, tmp_path):
    writer, other = Writer(broker, "w"), Writer(broker, "other")
    writer.commit(a="1")
    other.begin(a="77")
    batch = BatchKey(incarnation="run", batch_id=1)
    brought = replicas.catch_up("counts", {0: {"in-0@one": 7}, 1: {"in-1@one": 7}}, lambda: False, batch)
    assert set(brought.restored) == {1}
    values, position = content(broker, tmp_path)
    assert values == {"a": "1"}
    assert position.restoring
    other.end()
    assert set(replicas.catch_up("counts", {0: {"in-0@one": 7}}, lambda: False, batch).restored) == {0}
    assert content(broker, tmp_path)[1].batch == batch


def test_a_killed_process_is_replaced_and_goes_on(broker, replicas, tmp_path):
    writer = Writer(broker, "w")
    writer.commit(a="1")
    replicas.follow([("counts", 0)])
    wait_until(lambda: replicas.progress(), "followed")
    first = replicas.pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: replicas.pid != first, "another process")
    writer.commit(b="2")
    wait_until(lambda: replicas.progress() and replicas.progress()[("counts", 0)].position >= 4, "followed again")
    brought_near(replicas)
    assert content(broker, tmp_path)[0] == {"a": "1", "b": "2"}


def test_a_changelog_made_anew_is_noticed_while_it_is_followed(broker, replicas, changelog, tmp_path):
    writer = Writer(broker, "w")
    writer.commit(**{f"k{n}": "old" for n in range(20)})
    replicas.follow([("counts", 0)])
    wait_until(lambda: replicas.progress() and replicas.progress()[("counts", 0)].records >= 20, "followed")
    with Admin(broker.bootstrap_servers) as admin:
        admin.delete_topics([changelog])
        admin.create_topics({changelog: PARTITIONS})
    writer = Writer(broker, "later")
    writer.commit(a="new")
    wait_until(lambda: replicas.rebuilt > 0, "noticed")
    brought_near(replicas)
    assert content(broker, tmp_path)[0] == {"a": "new"}


def test_it_ends_with_its_driver(replicas):
    replicas._closed = True  # as when the driver is gone: nobody starts another
    replicas._process.end_input()
    assert replicas._process.wait(30) == 0
    replicas._process.close()
    replicas._closed = False
