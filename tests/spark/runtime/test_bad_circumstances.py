"""What the world around an application gets wrong: each ends in one error that says what to do, and nothing is lost.

A record that is too large for its sink, a permission that is missing, a disk that is full: afterwards, when it is
mended, the same application goes on where it was and everything is counted once.
"""

import contextlib
import os
import random

import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.small_disk import mounted_small_disk

from headrace.client import admin_access
from headrace.client.admin import Admin
from headrace.errors import BrokerError, RecordError, StateError

pytestmark = pytest.mark.spark
EXACTLY_ONCE = {"processing_guarantee": "exactly_once_v2"}


SECURED = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "authorizer.class.name": "on",
    "allow.everyone.if.no.acl.found": True,
    "super.users": "User:root",
}
broker = broker_fixture({"flights": 4}, config=SECURED)


def fails(app, kind):
    """The error that ends it, or keeps it from starting."""
    with pytest.raises(kind) as raised, app.start() as started:
        started.awaitTermination(120)
    assert raised.value.fix, "every error says what to do"
    return raised.value


def goes_on(app):
    with app.start() as started:
        started.wait_until("caught-up", timeout=120)


def test_a_record_that_is_too_large_for_its_sink(broker, make_app, flights):
    """And a key of 600 bytes, longer than LMDB takes."""

    def named():
        app = make_app("named", **EXACTLY_ONCE)
        app.stream("flights", schema="origin string").groupBy("origin").count().to_topic("named", partitions=1)
        return app

    with Admin(broker.bootstrap_servers, bootstrap_timeout_ms=60_000) as admin:
        admin.create_topics({"named": 1})
        admin.alter_configs("topic", "named", {"max.message.bytes": "2000"})
        names = ["x" * 600, random.Random(1).randbytes(3000).hex(), "short"]  # the second does not compress
        broker.produce("flights", [{"origin": name} for name in names[:1]])
        goes_on(named())
        broker.produce("flights", [{"origin": name} for name in names])
        error = fails(named(), RecordError)
        assert error.code == "record-too-large"
        assert "named-by-origin-repartition-" in error.message, "the record is the one that the sink's task reads"
        assert "max.message.bytes of the topic is 2000" in error.message
        admin.alter_configs("topic", "named", {"max.message.bytes": "20000"})
    goes_on(named())
    counts = {row["origin"]: row["count"] for row in flights.newest(broker, "named").values()}
    assert counts == {names[0]: 2, names[1]: 1, names[2]: 1}


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_permission_is_missing(broker, make_app, flights, operation):
    """To write the sink or to read the source; the broker's words name the topic."""
    topic = {"WRITE": "by-origin", "READ": "flights"}[operation]
    flights.send_keyed(broker, range(100))
    with Admin(broker.bootstrap_servers, bootstrap_timeout_ms=60_000) as admin:
        admin.create_topics({"by-origin": 2})
        rule = admin_access.AclBinding(
            resource_type="TOPIC", name=topic, principal="User:ANONYMOUS", operation=operation, permission="DENY"
        )
        admin_access.create_acls(admin.client, [rule])
        error = fails(flights.count_by_origin(make_app(**EXACTLY_ONCE), key="origin"), BrokerError)
        assert error.code == "not-authorized"
        assert topic in error.message
        admin_access.delete_acls(admin.client, [admin_access.AclWanted(resource_type="TOPIC", name=topic)])
    goes_on(flights.count_by_origin(make_app(**EXACTLY_ONCE), key="origin"))
    assert flights.newest(broker, "by-origin") == flights.counted(range(100))


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 4 MB as state directory, where mounting one is permitted."""
    with mounted_small_disk(tmp_path / "a", "4m") as place:
        yield place


def test_the_disk_of_the_state_directory_is_full(broker, make_app, flights, small_disk):
    def each():
        app = make_app(**EXACTLY_ONCE)
        app.stream("flights", schema="n bigint", key="n").groupBy("n").count().to_topic("each", partitions=2)
        return app

    broker.produce("flights", [{"n": n} for n in range(100)], key=lambda value: str(value["n"]))
    goes_on(each())
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    broker.produce("flights", [{"n": n} for n in range(20_000)], key=lambda value: str(value["n"]))
    for room in (0, 250_000):  # for nothing at all; for a start, and not for the values
        os.truncate(ballast, ballast.stat().st_size - room)
        error = fails(each(), StateError)
        assert error.code == "disk-full"
        assert str(small_disk) in error.message
    ballast.unlink()
    goes_on(each())
    counts = {int(row["n"]): row["count"] for row in flights.newest(broker, "each").values()}
    assert counts == {n: 2 if n < 100 else 1 for n in range(20_000)}
