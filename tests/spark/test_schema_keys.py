"""Keys with a schema, with a real registry and Confluent's own serializers on the other side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import functions as F

from headrace import Avro, DeadLetter, JsonSchema, Protobuf, SchemaRegistry

pytestmark = [pytest.mark.spark, pytest.mark.interop]

PLACE = {
    "type": "object",
    "title": "Place",
    "properties": {"city": {"type": "string"}, "zone": {"type": "integer"}},
    "required": ["city", "zone"],
}
KEY = 'syntax = "proto3"; message Key { optional string customer = 1; }'


def test_keys_with_a_schema_in_and_out(make_app: Any, broker: Any, registry: Any) -> None:
    broker.create_topics({"orders": 2, "visits": 2, "bad": 1})
    on_registry = SchemaRegistry(registry.url)
    with SchemaRegistryClient({"url": registry.url}) as client:
        write_long = AvroSerializer(client, '"long"')
        write_place = JSONSerializer(json.dumps(PLACE), client)
        of_order, of_visit = (SerializationContext(topic, MessageField.KEY) for topic in ("orders", "visits"))
        for n in range(30):
            broker.produce("orders", [{"amount": n, "customer": f"c{n % 2}"}], key=write_long(n % 3, of_order))
            place = write_place({"city": "Ulm", "zone": n % 4}, of_visit)
            broker.produce("visits", [{"n": n}], key=place)
        broker.produce("orders", [{"amount": 100}], key=b"\1no header")
        broker.produce("visits", [{"n": 100}], key=place[:-2])
        app = make_app("schema-keys", on_error=DeadLetter("bad"))
        orders = app.stream("orders", schema="amount int, customer string", key_format=Avro(registry=on_registry))
        visits = app.stream("visits", schema="n int", key="place", key_format=JsonSchema(registry=on_registry))
        assert dict(orders.dtypes)["key"] == "bigint"
        assert dict(visits.dtypes)["place"] == "struct<city:string,zone:bigint>"
        sums = orders.groupBy("key").agg(F.sum("amount").alias("total"))
        sums.to_topic("sums", key_format=Avro(registry=on_registry), value="json", partitions=2)
        protobuf = Protobuf(registry=on_registry, schema=KEY)
        orders.select("customer", "amount").to_topic("sold", key="customer", key_format=protobuf, partitions=2)
        places = visits.select("place", F.col("place.zone").alias("zone"), "n")
        places.to_topic("places", key="place", key_format=JsonSchema(registry=on_registry), partitions=2)
        with app.start() as started:
            started.processAllAvailable()
        verdict = app.verify()
        assert verdict.passed, str(verdict)
        assert [sink.expected for sink in verdict.sinks] == [3, 30, 30]
        # Confluent's deserializers read the keys by the schemas that are registered under the subjects of keys.
        assert client.get_latest_version("sums-key").schema.schema_str == '"long"'
        read_long, read_place = AvroDeserializer(client), JSONDeserializer(None, schema_registry_client=client)
        totals = {
            read_long(each.key, SerializationContext("sums", MessageField.KEY)) for each in broker.records("sums")
        }
        assert totals == {0, 1, 2}
        of_place = SerializationContext("places", MessageField.KEY)
        zones = sorted(read_place(each.key, of_place)["zone"] for each in broker.records("places"))
        assert zones == sorted(n % 4 for n in range(30))
        assert client.get_latest_version("sold-key").schema.schema_type == "PROTOBUF"
    assert {each.key[5:] for each in broker.records("sold")} == {b"\0\n\2c0", b"\0\n\2c1"}
    reasons = sorted(dict(each.headers)["headrace.reason"].decode() for each in broker.records("bad"))
    assert len(reasons) == 2
    assert reasons[0].startswith("its key: it does not begin with a zero byte and the id of a schema")
    assert reasons[1].startswith("its key: it is not JSON")
