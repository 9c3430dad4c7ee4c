"""Applications over Avro topics with a real schema registry and Confluent's own serializers on the other side."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import functions as F
from tests.interop.schema_registry import RunningSchemaRegistry

from headrace import Avro, DeadLetter, SchemaRegistry
from headrace.errors import BrokerError, HeadraceError, TopologyError

pytestmark = [pytest.mark.spark, pytest.mark.interop]

FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
SECOND = FIRST | {
    "fields": [*FIRST["fields"], {"name": "channel", "type": ["null", "string"], "default": None}]  # type: ignore[misc]
}


@pytest.fixture
def client(registry: RunningSchemaRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def order(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"c{number % 3}",
        "amount": decimal.Decimal(number) / 4,
        "placed": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=number),
        "tags": ["a", "b"][: number % 3],
        **more,
    }


def serialized(
    client: SchemaRegistryClient, schema: dict[str, Any], topic: str, rows: list[dict[str, Any]]
) -> list[bytes]:
    """Values as Confluent's serializer writes them; it registers the schema as well."""
    write = AvroSerializer(client, json.dumps(schema))
    return [write(row, SerializationContext(topic, MessageField.VALUE)) for row in rows]  # type: ignore[misc]


def deserialized(client: SchemaRegistryClient, topic: str, values: list[bytes]) -> list[Any]:
    read = AvroDeserializer(client)
    return [read(value, SerializationContext(topic, MessageField.VALUE)) for value in values]


def test_two_versions_of_a_schema_in_and_avro_out(
    make_app: Any, running: Any, broker: Any, client: Any, registry: Any
) -> None:
    broker.create_topics({"orders": 2})
    old = serialized(client, FIRST, "orders", [order(n) for n in range(40)])
    new = serialized(client, SECOND, "orders", [order(n, channel="web") for n in range(40, 60)])
    broker.produce("orders", [*old, *new])
    avro = Avro(registry=SchemaRegistry(registry.url))

    app = make_app("avro")
    orders = app.stream("orders", value=avro)
    assert dict(orders.dtypes)["amount"] == "decimal(12,2)"
    big = orders.where("amount >= 1").withColumn("doubled", F.col("amount") * 2)
    big.to_topic("big", value=avro, key="customer", partitions=2)
    sums = orders.groupBy("customer").agg(F.count("*").alias("orders"), F.sum("id").alias("ids"))
    sums.to_topic("sums", value=avro, partitions=2)
    with app.start() as started:
        started.processAllAvailable()
    verdict = app.verify()
    assert verdict.passed, str(verdict)

    rows = {row["id"]: row for row in deserialized(client, "big", [record.value for record in broker.records("big")])}
    assert sorted(rows) == list(range(4, 60))
    assert rows[5]["channel"] is None
    assert rows[50] == order(50, channel="web") | {"doubled": decimal.Decimal("25.00")}
    newest = {record.key.decode(): record.value for record in broker.records("sums")}
    totals = dict(zip(newest, deserialized(client, "sums", list(newest.values())), strict=True))
    assert totals == {
        f"c{i}": {"customer": f"c{i}", "orders": 20, "ids": sum(n for n in range(60) if n % 3 == i)} for i in range(3)
    }
    assert client.get_latest_version("big-value").schema.schema_type == "AVRO"


def test_records_that_do_not_decode_are_set_aside(make_app: Any, broker: Any, client: Any, registry: Any) -> None:
    broker.create_topics({"mixed": 1})
    good = serialized(client, FIRST, "mixed", [order(n) for n in range(4)])
    foreign = serialized(
        client, {"type": "record", "name": "X", "fields": [{"name": "x", "type": "int"}]}, "x", [{"x": 1}]
    )
    unknown = b"\0" + (10**6).to_bytes(4, "big") + good[0][5:]
    broker.produce("mixed", [good[0], b"{}", good[1], unknown, *foreign, good[2][:-3], good[3]])
    broker.create_topics({"bad": 1})

    app = make_app("avro-bad", on_error=DeadLetter("bad"))
    app.stream("mixed", value=Avro(registry=SchemaRegistry(registry.url))).to_topic("copied", partitions=1)
    with app.start() as started:
        started.processAllAvailable()
    assert app.verify().passed
    assert [json.loads(record.value)["id"] for record in broker.records("copied")] == [0, 1, 3]
    reasons = [dict(record.headers)["headrace.reason"].decode() for record in broker.records("bad")]
    for reason, part in zip(
        reasons, ("zero byte", "no schema with the id", "cannot be read as", "ends within"), strict=True
    ):
        assert part in reason, reasons


def test_a_schema_without_a_registry(make_app: Any, broker: Any) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    broker.create_topics({"bare": 1})
    broker.produce("bare", [b"\x02", b"\x04", b"\x06"])
    app = make_app("avro-bare")
    app.stream("bare", value=Avro(schema=schema)).where("n > 1").to_topic(
        "out", value=Avro(schema=schema), partitions=1
    )
    with app.start() as started:
        started.processAllAvailable()
    assert app.verify().passed
    assert [record.value for record in broker.records("out")] == [b"\x04", b"\x06"]


def test_refusals_at_the_users_line(make_app: Any, client: Any, registry: Any) -> None:
    app, avro = make_app("refused"), Avro(registry=SchemaRegistry(registry.url))
    with pytest.raises(HeadraceError, match='no schemas for the subject "nowhere-value"') as raised:
        app.stream("nowhere", value=avro)
    assert "test_avro_topics.py" in str(raised.value.facts["where"])
    with pytest.raises(HeadraceError, match="cannot be reached") as raised:
        app.stream("orders", value=Avro(registry=SchemaRegistry("http://127.0.0.1:9")))
    assert raised.value.code == "registry-unreachable"
    with pytest.raises(TopologyError, match="does not say which schema"):
        app.stream("orders", value="avro")
    client.register_schema(
        "text-value", Schema('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}', "JSON")
    )
    with pytest.raises(TopologyError, match="JSON, not Avro"):
        app.stream("text", value=avro)


def test_an_incompatible_schema_is_refused_before_anything_is_written(
    make_app: Any, broker: Any, client: Any, registry: Any
) -> None:
    client.register_schema("changed-value", Schema(json.dumps(FIRST), "AVRO"))
    client.set_compatibility("changed-value", level="BACKWARD")
    broker.create_topics({"numbers": 1})
    broker.produce("numbers", ['{"n": 1}'])
    app = make_app("incompatible")
    rows = app.stream("numbers", schema="n int").withColumn("id", F.col("n").cast("string")).select("id")
    rows.to_topic("changed", value=Avro(registry=SchemaRegistry(registry.url)), partitions=1)
    assert "schema-incompatible" in {finding.code for finding in app.check()}
    with pytest.raises(HeadraceError, match="refuses the schema") as raised, app.start() as started:
        started.processAllAvailable()
    assert raised.value.code == "schema-incompatible"
    with pytest.raises(BrokerError, match="no topic changed"):
        broker.records("changed")
