"""Topics whose keys and values are single values in the bytes of Kafka's serializers."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pyspark.sql import functions as F

from headrace import DeadLetter
from headrace.errors import TopologyError
from headrace.protocol.partitioner import partition_for_key
from headrace.testing import TopologyTest

pytestmark = pytest.mark.spark

ID = "67e55044-10b1-426f-9247-bb680e5fe0c8"


def long_bytes(value: int) -> bytes:
    return struct.pack(">q", value)


def test_typed_keys_and_values_in_and_out(make_offline_app: Any) -> None:
    app = make_offline_app("typed", on_error=DeadLetter("bad"))
    readings = app.stream("readings", key_format="long", key="sensor", value="double")
    assert dict(readings.dtypes) == {"sensor": "bigint", "value": "double"}
    readings.groupBy("sensor").agg(F.count("*").alias("n")).to_topic("counts", key_format="long", value="long")
    warm = readings.where("value > 20").select("sensor", "value", F.lit(ID).alias("id"))
    warm.to_topic("warm", key="id", key_format="uuid", value="json")
    assert "repartition" not in app.describe()
    assert "counts (long, key sensor as long" in app.describe()
    with TopologyTest(app, partitions={"counts": 4}) as test:
        test.push("readings", [{"sensor": n % 3, "value": 15.0 + n} for n in range(10)])
        test.push("readings", [b"short", {"value": 1.0}, {"sensor": 1, "value": 30.5}])
        test.push("readings", [{"value": 2.0}], key=[b"4444"])
        assert test.table("counts") == {0: 4, 1: 4, 2: 3}
        records = test.records("counts")
        assert all(each.partition == partition_for_key(each.key or b"", 4) for each in records)
        assert {each.key for each in records} == {long_bytes(n) for n in range(3)}
        assert [each.key for each in test.records("warm")] == [ID.encode()] * 5
        assert test.read("warm")[-1] == {"sensor": 1, "value": 30.5, "id": ID}
        reasons = sorted((dict(each.headers)["headrace.reason"] or b"").decode() for each in test.records("bad"))
    assert reasons == ["it has 5 bytes; a double has 8", "it has no key", "its key: it has 4 bytes; a long has 8"]


def test_keys_without_a_declared_column_are_repartitioned_and_may_be_missing(make_offline_app: Any) -> None:
    app = make_offline_app("missing")
    words = app.stream("words", schema="n int", key_format="string")
    words.groupBy("key").agg(F.sum("n").alias("n")).to_topic("sums")
    words.select("n").to_topic("numbers", key="n", key_format="integer", value="json")
    words.select(F.col("key").alias("value")).to_topic("texts", value="bytes")
    assert "repartition" in app.describe()
    with TopologyTest(app) as test:
        test.push("words", [{"key": "a", "n": 1}, {"n": 2}, {"key": "a", "n": 3}, None])
        assert test.table("sums") == {"a": {"key": "a", "n": 4}, '{"key":null}': {"key": None, "n": 2}}
        assert sorted(each.key or b"" for each in test.records("numbers")) == [struct.pack(">i", n) for n in (1, 2, 3)]
        assert test.read("texts") == [b"a", None, b"a"]


def test_fractions_are_no_declared_key(make_offline_app: Any) -> None:
    """0.0 and -0.0 are equal, and their bytes are in different partitions."""
    app = make_offline_app("fractions")
    rows = app.stream("rows", value="integer", key="at", key_format="double")
    rows.groupBy(F.col("at").cast("int").alias("at")).count().to_topic("counts")
    assert "repartition" in app.describe()


def test_keys_of_deleted_rows_are_written_in_their_format(make_offline_app: Any) -> None:
    app = make_offline_app("deleted")
    visits = app.stream("visits", schema="user string, page int, n int")
    newest = visits.groupBy("user").agg(F.max_by("page", "n").alias("page"))
    pages = newest.groupBy("page").agg(F.count("*").alias("users"), name="pages")
    pages.to_topic("pages", key_format="integer", value="long")
    rare = visits.groupBy("page").agg(F.count("*").alias("visits"), name="rare").where("visits < 2")
    rare.to_topic("rare", key_format="integer", value="long")
    with TopologyTest(app) as test:
        test.push("visits", [{"user": "a", "page": 1, "n": 1}, {"user": "b", "page": 2, "n": 1}])
        assert test.table("pages") == {1: 1, 2: 1} == test.table("rare")
        test.push("visits", [{"user": "a", "page": 2, "n": 2}])
        assert (test.table("pages"), test.table("rare")) == ({2: 2}, {1: 1})
        deleted = {(each.key, each.value) for name in ("pages", "rare") for each in test.records(name)[-2:]}
        assert {(struct.pack(">i", 1), None), (struct.pack(">i", 2), None)} <= deleted


REFUSED = {
    "key_format='int' is not a format of keys; did you mean 'integer'?": lambda app, s: app.stream(
        "a", value="long", key_format="int"
    ),
    "value='bigint' is not a format; did you mean 'long'?": lambda app, s: app.stream("a", value="bigint"),
    'the values have a column "key" as well': lambda app, s: app.stream("a", schema="key int", key_format="long"),
    "raw columns have the key as bytes": lambda app, s: app.stream("a", key_format="long"),
    "takes no schema": lambda app, s: app.stream("a", schema="n int", value="long"),
    "without key= records keep the key": lambda app, s: s.to_topic("b", key_format="long"),
    "writes one column, and the key has key, value": lambda app, s: s.to_topic(
        "b", key=["key", "value"], key_format="long"
    ),
    'of type tinyint or smallint or int; "key" is bigint': lambda app, s: s.to_topic(
        "b", key="key", key_format="integer"
    ),
    'of type string; "value" is int': lambda app, s: s.withColumn("value", F.lit(1)).to_topic(
        "d", key="key", value="uuid"
    ),
    'value="long" writes one column besides the key': lambda app, s: s.to_topic("b", value="long"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refused_at_the_users_line(make_offline_app: Any, reason: str) -> None:
    app = make_offline_app("refused")
    rows = app.stream("rows", value="string", key_format="long")
    with pytest.raises(TopologyError) as raised:
        REFUSED[reason](app, rows)
    assert reason in str(raised.value)
    assert raised.value.fix


def test_single_values_on_a_broker_are_verified(make_app: Any, broker: Any) -> None:
    broker.create_topics({"readings": 3, "bad": 1})
    values = [struct.pack(">f", n / 8) for n in range(200)]
    broker.produce("readings", values, key=lambda value: long_bytes(int(struct.unpack(">f", value)[0] * 8) % 5))
    broker.produce("readings", [b"123"], key=long_bytes(1))
    broker.produce("readings", [values[1]], key=b"1")
    app = make_app("single", on_error=DeadLetter("bad"))
    readings = app.stream("readings", value="float", key_format="long", key="sensor")
    totals = readings.groupBy("sensor").agg(F.sum("value").alias("total"))
    totals.to_topic("totals", key_format="long", value="double", partitions=3)
    readings.select("sensor", (F.col("value") * 2).cast("float").alias("twice")).to_topic(
        "twice", key="sensor", key_format="long", value="float", partitions=3
    )
    with app.start() as started:
        started.processAllAvailable()
    verdict = app.verify()
    assert verdict.passed, str(verdict)
    assert [sink.expected for sink in verdict.sinks] == [5, 200]
    newest = {each.key: struct.unpack(">d", each.value)[0] for each in broker.records("totals")}
    assert newest == {long_bytes(n): sum(m / 8 for m in range(n, 200, 5)) for n in range(5)}
    assert len(broker.records("bad")) == 2
