"""An application comes back to a state directory that is not what it left: real Spark, our broker, the whole way.

Each trouble is made between two runs. What the counts are afterwards is the proof; what was said tells the way.
"""

import json
import random
from pathlib import Path

import lmdb
import pytest
from tests.longer import longer

from headrace.client.admin import Admin
from headrace.errors import StateError
from headrace.spark.runtime.batches import plan_factory
from headrace.spark.runtime.stores.store_records import seal, unseal

pytestmark = [pytest.mark.spark, pytest.mark.slow]

APP = "flight-counts"
CHANGELOG = f"{APP}-by-origin-changelog"


def meta(store, change):
    """`change(transaction, database)` on a store's own records, as nobody should."""
    with lmdb.open(str(store), max_dbs=2) as environment:
        database = environment.open_db(b"meta")
        with environment.begin(write=True, db=database) as transaction:
            change(transaction)


def truncated(store, _broker):
    data = store / "data.mdb"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)


def garbled(store, _broker):
    data = store / "data.mdb"
    junk = random.Random(1).randbytes(data.stat().st_size - 8192)
    with data.open("r+b") as file:
        file.seek(8192)
        file.write(junk)


def no_lmdb(store, _broker):
    (store / "data.mdb").write_bytes(b"this is no store" * 1000)


def bad_checksum(store, _broker):
    def change(transaction):
        for name in (b"position", b"prepared"):
            if (found := transaction.get(name)) is not None:
                transaction.put(name, found[:-3] + bytes([found[-3] ^ 1]) + found[-2:])

    meta(store, change)


def deadly(store, _broker):
    (store / "opening").write_text("2")


def ahead_of_the_changelog(store, _broker):
    """As after a changelog lost its end: the store stands where the log never was."""

    def change(transaction):
        transaction.delete(b"prepared")
        transaction.delete(b"undo")
        position = json.loads(unseal(transaction.get(b"position")))
        position |= {"changelog_offset": 10_000, "input_offsets": {}}
        transaction.put(b"position", seal(json.dumps(position).encode()))

    meta(store, change)


def older_format(store, _broker):
    write_format(store, 2)


def newer_format(store, _broker):
    write_format(store, 99)


def write_format(store, number):
    def change(transaction):
        body = json.loads(unseal(transaction.get(b"identity"))) | {"format": number}
        transaction.put(b"identity", seal(json.dumps(body, sort_keys=True).encode()))

    meta(store, change)


class Home:
    """One application that stops and comes back, test after test, always to the same broker and directory."""

    def __init__(self, broker, flights, make):
        self.broker, self.flights, self.make = broker, flights, make
        self.first = self.sent = 0  # the state holds flights first to sent

    def run(self, more):
        self.flights.send(self.broker, range(self.sent, self.sent + more))
        self.sent += more
        with self.flights.count_by_origin(self.make()).start() as app:
            app.wait_until("caught-up", timeout=120)
            return sum(runner.progress.restored for runner in app._runtime.runners.values())

    def stores(self):
        return sorted(path.parent for path in Path(self.make().state_dir).glob("*_*/by-origin/data.mdb"))

    def is_right(self):
        newest = self.flights.newest(self.broker, "by-origin")
        assert newest == self.flights.counted(range(self.first, self.sent))


@pytest.fixture(scope="module")
def home(spark, flights, tmp_path_factory):
    from headrace.broker.embedded import EmbeddedBroker
    from headrace.spark.streams_app import StreamsApp

    directory = tmp_path_factory.mktemp("home")
    with EmbeddedBroker({"flights": 4}, config={"group.streams.initial.rebalance.delay.ms": 0}) as broker:

        def make():
            return StreamsApp(APP, spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=directory)

        home = Home(broker, flights, make)
        home.run(300)
        yield home


@pytest.fixture
def returns(home, caplog):
    """Make trouble with every store, run on: (what was said, records restored at the opening)."""

    def returns(trouble, between=lambda: None):
        stores = home.stores()
        assert stores
        for store in stores:
            trouble(store, home.broker)
        between()
        caplog.clear()
        caplog.set_level("INFO", "headrace.spark")
        restored = home.run(120)
        return caplog.text, restored

    return returns


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (truncated, "data.mdb has"),
        pytest.param(garbled, "is set aside|is rebuilt|was rebuilt", marks=longer),
        pytest.param(no_lmdb, "is rebuilt", marks=longer),
        (bad_checksum, "checksum"),
        pytest.param(deadly, "processes died", marks=longer),
        (ahead_of_the_changelog, "it stands at 10000"),
        (older_format, "it has format 2"),
        pytest.param(newer_format, "it has format 99", marks=longer),
    ],
)
def test_a_store_that_is_of_no_use_is_rebuilt(trouble, said, returns, home):
    log, restored = returns(trouble)
    assert any(part in log for part in said.split("|")), log
    assert restored > 0, "replayed from the changelog"
    home.is_right()


def test_after_a_reboot_unflushed_state_is_restored_again(returns, monkeypatch, home):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(plan_factory, "boot_id", lambda: "another boot")
        log, restored = returns(lambda _store, _broker: None)
        assert "the machine was started anew" in log
        assert restored > 0
        home.is_right()
    home.run(120)  # stores of this boot again, for whoever comes next, and a last batch of every key


def test_a_changelog_that_was_made_anew_is_another_one(returns, home):
    def anew():
        with Admin(home.broker.bootstrap_servers) as admin:
            partitions = len(admin.describe_topics([CHANGELOG])[CHANGELOG].partitions)
            admin.delete_topics([CHANGELOG])
            admin.create_topics({CHANGELOG: partitions}, configs={CHANGELOG: {"cleanup.policy": "compact"}})
        home.first = home.sent  # the state went with the topic

    log, _ = returns(lambda _store, _broker: None, between=anew)
    assert "deleted and created anew" in log
    home.is_right()


def test_a_second_process_on_the_directory_is_refused(make_app, running, flights):
    first = running(flights.count_by_origin(make_app()))
    with pytest.raises(StateError) as refused:
        flights.count_by_origin(make_app()).start()
    assert refused.value.code == "state-locked"
    assert "state_dir=" in refused.value.fix
    assert first.isActive


def test_another_application_on_the_directory_is_refused(make_app, flights, tmp_path):
    directory = tmp_path / "a"
    directory.mkdir()
    from headrace.spark.runtime.stores.state_directory import StateDirectory

    StateDirectory(Path(directory), "another-group").release()
    with pytest.raises(StateError) as refused:
        flights.count_by_origin(make_app()).start()
    assert refused.value.code == "state-of-another-group"
