"""Applications over Protobuf topics with a real schema registry and Confluent's own serializers on the other side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import functions as F

from headrace import DeadLetter, Protobuf, SchemaRegistry
from headrace.errors import TopologyError
from headrace.spark.formats.protobuf_schema import compile_proto

pytestmark = [pytest.mark.spark, pytest.mark.interop]

ORDERS = """syntax = "proto3";
package shop;
message Note { string text = 1; }
message Order {
  int64 id = 1;
  string customer = 2;
  optional double amount = 3;
  repeated string tags = 4;
}
"""
TOTALS = 'syntax = "proto3"; message Total { optional string customer = 1; optional int64 orders = 2; }'


def message_class(text: str, name: str) -> Any:
    return GetMessageClass(compile_proto(text).message_types_by_name[name])


def serialized(client: SchemaRegistryClient, topic: str, messages: list[Any]) -> list[bytes]:
    """Values as Confluent's serializer writes them; it registers the schema as well."""
    write = ProtobufSerializer(type(messages[0]), client, {"use.deprecated.format": False})
    return [write(message, SerializationContext(topic, MessageField.VALUE)) for message in messages]


def test_protobuf_in_and_out_with_a_registry(make_app: Any, broker: Any, registry: Any) -> None:
    order, note = (message_class(ORDERS, name) for name in ("Order", "Note"))
    broker.create_topics({"orders": 2, "bad": 1})
    with SchemaRegistryClient({"url": registry.url}) as client:
        orders = [order(id=n, customer=f"c{n % 3}", amount=n / 4, tags=["a", "b"][: n % 3]) for n in range(60)]
        values = serialized(client, "orders", orders)
        foreign = serialized(client, "orders", [note(text="x")])
        assert client.get_latest_version("orders-value").schema.schema_type == "PROTOBUF"
        unknown = b"\0" + (10**6).to_bytes(4, "big") + values[0][5:]
        broker.produce("orders", [*values, b"{}", unknown, *foreign, values[5][:-1]])
        source = Protobuf(registry=SchemaRegistry(registry.url), message="Order")
        sink = Protobuf(registry=SchemaRegistry(registry.url), schema=TOTALS)
        app = make_app("protobuf", on_error=DeadLetter("bad"))
        rows = app.stream("orders", value=source)
        assert dict(rows.dtypes)["tags"] == "array<string>"
        rows.groupBy("customer").agg(F.count("*").alias("orders")).to_topic("totals", value=sink, partitions=2)
        rows.where("id < 5").to_topic("copied", partitions=1)
        with app.start() as started:
            started.processAllAvailable()
        verdict = app.verify()
        assert verdict.passed, str(verdict)
        schema_id = client.get_latest_version("totals-value").schema_id
    total, newest = message_class(TOTALS, "Total"), {}
    for record in broker.records("totals"):
        assert record.value[:6] == b"\0" + schema_id.to_bytes(4, "big") + b"\0"
        newest[record.key.decode()] = total.FromString(record.value[6:])
    assert {key: (found.customer, found.orders) for key, found in newest.items()} == {
        f"c{i}": (f"c{i}", 20) for i in range(3)
    }
    copied = [json.loads(record.value) for record in broker.records("copied")]
    assert sorted((row["id"], row["amount"], row["tags"]) for row in copied) == [
        (n, n / 4, ["a", "b"][: n % 3]) for n in range(5)
    ]
    reasons = sorted(dict(record.headers)["headrace.reason"].decode() for record in broker.records("bad"))
    for part in ("zero byte", "no schema with the id", "it is a message shop.Note", "ends within"):
        assert any(part in reason for reason in reasons), reasons
    assert len(reasons) == 4


def test_refusals_at_the_users_line(make_app: Any, registry: Any) -> None:
    app = make_app("refused")
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("text-value", Schema('"string"', "AVRO"))
    protobuf = Protobuf(registry=SchemaRegistry(registry.url))
    with pytest.raises(TopologyError, match="AVRO, not Protobuf") as raised:
        app.stream("text", value=protobuf)
    assert "test_protobuf_topics.py" in str(raised.value.facts["where"])
    with pytest.raises(TopologyError, match="does not say which schema"):
        app.stream("orders", value="protobuf")
    with pytest.raises(TopologyError, match="needs a schema") as raised:
        app.stream("numbers", schema="n int").to_topic("out", value=protobuf)
    assert "optional int32 n = 1;" in raised.value.fix
