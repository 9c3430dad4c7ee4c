"""Programs of the pages are accepted: each is declared and compiled, in one Spark session, without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from tests.docs.pages import PAGES, ROOT, fences
from tests.interop.kafka_jars import skip_without_kafka
from tests.interop.schema_registry import RunningSchemaRegistry

from headrace.spark import session
from headrace.spark.formats.schema_registry import close_clients

ORDER = """{"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"},
                                                          {"name": "amount", "type": "double"}]}"""
INVOICE = """{"type": "object", "title": "Invoice", "properties": {"customer": {"type": "string"},
                                                                   "amount": {"type": "number"}}}"""
PURCHASE = 'syntax = "proto3"; message Purchase { string customer = 1; double amount = 2; }'


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """The address of a schema registry that knows the topics of the pages."""
    with skip_without_kafka(), RunningSchemaRegistry() as running:
        with SchemaRegistryClient({"url": running.url}) as client:
            client.register_schema("orders-value", Schema(ORDER, "AVRO"))
            client.register_schema("invoices-value", Schema(INVOICE, "JSON"))
            client.register_schema("purchases-value", Schema(PURCHASE, "PROTOBUF"))
        yield running.url
        close_clients()


@pytest.mark.spark
def test_programs_of_the_pages_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str) -> None:
    spark = session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    airports = spark.createDataFrame([("EWR", "Newark")], "origin string, name string")
    airports.write.parquet(str(tmp_path / "airports"))
    monkeypatch.setitem(os.environ, "POD_NAME", "pod-1")
    compiled = 0
    for page in PAGES:
        for program in fences(page, "python"):
            if not re.search(r"^app = StreamsApp\(", program, re.MULTILINE) or "app.start()" in program:
                continue  # the others show classes, or need a broker
            names = {"__name__": "program"}
            program = program.replace('"/data/', f'"{tmp_path}/').replace("http://localhost:8081", registry)
            exec(compile(program, str(page.relative_to(ROOT)), "exec"), names)
            if ".stream(" in program:
                names["app"].compile()  # type: ignore[attr-defined]
                compiled += 1
    assert compiled > 15
