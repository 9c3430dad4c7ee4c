"""`headrace console-consumer`: records as Kafka's own console consumer prints them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.cli.command_lines import Command, lines_of

from headrace.cli.commands.console_producer import LineReader
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker


def test_formatter_properties(headrace: Command, broker: EmbeddedBroker) -> None:
    from headrace.client.network_client import NetworkClient
    from headrace.client.plain_records import PlainRecord, produce

    with NetworkClient(broker.bootstrap_servers) as client:
        record = PlainRecord(value=b"v", key=b"k", timestamp_ms=1_700_000_000_000, headers=(("a", b"1"), ("b", None)))
        produce(client, "flights", [record, PlainRecord(value=None, timestamp_ms=1)], partition=2)
    everything = [
        f"--formatter-property=print.{part}=true" for part in ("timestamp", "partition", "offset", "headers", "key")
    ]
    assert lines_of(headrace, broker, *everything) == [
        "CreateTime:1700000000000\tPartition:2\tOffset:0\ta:1,b:null\tk\tv",
        "CreateTime:1\tPartition:2\tOffset:1\tNO_HEADERS\tnull\tnull",
    ]
    document = json.loads(lines_of(headrace, broker, "--json", "--max-messages", "1")[0])
    assert document == {
        "topic": "flights", "partition": 2, "offset": 0, "timestamp": 1_700_000_000_000, "key": "k", "value": "v",
        "headers": [["a", "1"], ["b", None]],
    }  # fmt: skip


def test_start_offset_and_message_limit(headrace: Command, broker: EmbeddedBroker) -> None:
    from headrace.client.network_client import NetworkClient
    from headrace.client.plain_records import PlainRecord, produce

    with NetworkClient(broker.bootstrap_servers) as client:
        produce(client, "flights", [PlainRecord(value=str(number).encode()) for number in range(10)], partition=1)
    at = ("console-consumer", "--topic", "flights", "--bootstrap-server", broker.bootstrap_servers, "--timeout-ms", "1")
    assert headrace(*at, "--partition", "1", "--offset", "7").out.split() == ["7", "8", "9"]
    outcome = headrace(*at, "--partition", "1", "--offset", "earliest", "--max-messages", "2")
    assert outcome.out.split() == ["0", "1"]
    assert outcome.err == "Processed a total of 2 messages\n"
    assert headrace(*at).out == ""  # from now on
    assert headrace(*at, "--partition", "9").code == 2
    assert headrace(*at, "--offset", "1").code == 2


def test_a_missing_topic(headrace: Command, broker: EmbeddedBroker) -> None:
    outcome = headrace("console-consumer", "--topic", "flight", "--bootstrap-server", broker.bootstrap_servers)
    assert outcome.code == 1
    assert 'did you mean "flights"?' in outcome.err


def test_headers_stand_before_the_key() -> None:
    reader = LineReader.from_properties({"parse.headers": "true", "parse.key": "true", "null.marker": "N"})
    record = reader.record(b"h1:v1,h2:N\tkey\tvalue", 1)
    assert (record.headers, record.key, record.value) == ((("h1", b"v1"), ("h2", None)), b"key", b"value")
    with pytest.raises(HeadraceError, match="header key separator"):
        reader.record(b"h1\tkey\tvalue", 1)


def test_missing_separators_are_null_where_errors_are_ignored() -> None:
    reader = LineReader.from_properties({"parse.headers": "true", "parse.key": "true", "ignore.error": "true"})
    whole = reader.record(b"no separator", 1)
    assert (whole.headers, whole.key, whole.value) == ((), None, b"no separator")
    named = reader.record(b"h1\tvalue", 1)
    assert (named.headers, named.key, named.value) == ((("h1", None),), None, b"value")
