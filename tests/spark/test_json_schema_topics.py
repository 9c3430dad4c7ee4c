"""Applications over JSON Schema topics with a real registry and Confluent's own serializers on the other side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import functions as F

from headrace import DeadLetter, JsonSchema, SchemaRegistry
from headrace.errors import HeadraceError, TopologyError
from headrace.testing import TopologyTest

pytestmark = [pytest.mark.spark, pytest.mark.interop]

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "customer": {"type": "string"},
        "amount": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id", "customer"],
}
TOTAL = {
    "type": "object",
    "title": "Total",
    "properties": {"customer": {"type": ["null", "string"]}, "orders": {"type": "integer"}},
    "required": ["orders"],
    "additionalProperties": False,
}


def order(n: int) -> dict[str, Any]:
    found = {"id": n, "customer": f"c{n % 3}", "amount": n / 4 if n % 2 else None, "tags": ["a", "b"][: n % 3]}
    return found | {"at": f"2026-01-01T00:00:{n:02d}Z"}


def test_json_schema_in_and_out_with_a_registry(make_app: Any, broker: Any, registry: Any) -> None:
    broker.create_topics({"orders": 2, "bad": 1})
    values_of = SerializationContext("orders", MessageField.VALUE)
    with SchemaRegistryClient({"url": registry.url}) as client:
        write = JSONSerializer(json.dumps(ORDER), client)
        values = [write(order(n), values_of) for n in range(60)]
        avro = client.register_schema("others-value", Schema('"string"', "AVRO"))
        unknown = b"\0" + (10**6).to_bytes(4, "big") + values[0][5:]
        foreign = b"\0" + avro.to_bytes(4, "big") + values[0][5:]
        broker.produce("orders", [*values, b"{}", unknown, foreign, values[5][:-1]])
        serde = JsonSchema(registry=SchemaRegistry(registry.url))
        app = make_app("json-schema", on_error=DeadLetter("bad"))
        rows = app.stream("orders", value=serde)
        assert dict(rows.dtypes) == {
            "id": "bigint", "customer": "string", "amount": "double", "tags": "array<string>", "at": "timestamp",
        }  # fmt: skip
        given = JsonSchema(registry=SchemaRegistry(registry.url), schema=json.dumps(TOTAL))
        rows.groupBy("customer").agg(F.count("*").alias("orders")).to_topic("totals", value=given, partitions=2)
        rows.where("id < 5").to_topic("copied", value=serde, partitions=1)
        with app.start() as started:
            started.processAllAvailable()
        verdict = app.verify()
        assert verdict.passed, str(verdict)
        # Confluent's deserializer looks up the writer's schema and validates each value against it.
        read, totals = JSONDeserializer(None, schema_registry_client=client), {}
        for record in broker.records("totals"):
            found = read(record.value, SerializationContext("totals", MessageField.VALUE))
            totals[found["customer"]] = found["orders"]
        assert totals == {f"c{i}": 20 for i in range(3)}
        copied = [
            read(record.value, SerializationContext("copied", MessageField.VALUE))
            for record in broker.records("copied")
        ]
        assert client.get_latest_version("copied-value").schema.schema_type == "JSON"
    assert sorted((row["id"], row["amount"], row["tags"]) for row in copied) == [
        (n, order(n)["amount"], order(n)["tags"]) for n in range(5)
    ]
    assert {row["at"][:19] for row in copied} == {f"2026-01-01T00:00:0{n}" for n in range(5)}
    reasons = sorted(dict(record.headers)["headrace.reason"].decode() for record in broker.records("bad"))
    for part in ("zero byte", "no schema with the id", "AVRO, not JSON Schema", "it is not JSON"):
        assert any(part in reason for reason in reasons), reasons
    assert len(reasons) == 4


def test_refusals_at_the_users_line(make_app: Any, registry: Any) -> None:
    app = make_app("refused")
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("text-value", Schema('"string"', "AVRO"))
        client.register_schema("any-value", Schema('{"type": "object", "properties": {"a": {}}}', "JSON"))
    serde = JsonSchema(registry=SchemaRegistry(registry.url))
    with pytest.raises(TopologyError, match="AVRO, not JSON Schema") as raised:
        app.stream("text", value=serde)
    assert "test_json_schema_topics.py" in str(raised.value.facts["where"])
    with pytest.raises(TopologyError, match="cannot be read as columns: a has no type"):
        app.stream("any", value=serde)
    with pytest.raises(HeadraceError, match="has no schemas for the subject"):
        app.stream("missing", value=serde)
    with pytest.raises(TopologyError, match="JsonSchema has a schema of its own"):
        app.stream("text", schema="a string", value=serde)
    rows = app.stream(
        "numbers", value=JsonSchema(schema='{"type": "object", "properties": {"n": {"type": "integer"}}}')
    )
    with pytest.raises(TopologyError, match="n has the keyword minimum, which a sink does not check"):
        rows.to_topic(
            "out",
            value=JsonSchema(schema='{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}'),
        )


def test_schemas_that_refer_to_other_subjects(make_app: Any, registry: Any) -> None:
    money = {"type": "object", "properties": {"cents": {"type": "integer"}, "of": {"$ref": "#/definitions/code"}}}
    money["definitions"] = {"code": {"type": "string"}}
    item = {"type": "object", "properties": {"price": {"$ref": "money.json"}}}
    bill = {"type": "object", "properties": {"items": {"type": "array", "items": {"$ref": "item.json"}}}}
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("money", Schema(json.dumps(money), "JSON"))
        of_item = [SchemaReference("money.json", "money", 1)]
        client.register_schema("item", Schema(json.dumps(item), "JSON", of_item))
        of_bill = Schema(json.dumps(bill), "JSON", [SchemaReference("item.json", "item", 1)])
        client.register_schema("bills-value", of_bill)
        write = JSONSerializer(of_bill, client)
        rows = {"items": [{"price": {"cents": 5, "of": "EUR"}}]}
        value = write(rows, SerializationContext("bills", MessageField.VALUE))
    app = make_app("bills")
    bills = app.stream("bills", value=JsonSchema(registry=SchemaRegistry(registry.url)))
    assert dict(bills.dtypes) == {"items": "array<struct<price:struct<cents:bigint,of:string>>>"}
    bills.select(F.col("items")[0].price.cents.alias("cents")).to_topic("cents")
    with TopologyTest(app) as test:
        test.push("bills", [value])
        assert test.read("cents") == [{"cents": 5}]
