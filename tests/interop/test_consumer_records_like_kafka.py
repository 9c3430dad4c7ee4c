"""A consumer group's records, byte for byte those of Apache Kafka 4.3.1, as `test_group_records_like_kafka` has it.

What a run decides is put to fixed values: times, topic ids, versions of the metadata, hashes.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.interop.consumer_script import MINE, ConsumerScript
from tests.interop.kafka_broker import KafkaBroker
from tests.interop.test_consumer_groups_like_kafka import BROKER_SETTINGS
from tests.interop.test_group_records_like_kafka import decoded_by_kafka, segments, words

from headrace.broker.embedded import EmbeddedBroker
from headrace.coordinator.records.serde import decode, encode_key, encode_value
from headrace.protocol.record_batches import decode_records

pytestmark = [pytest.mark.interop, pytest.mark.slow]

TOKEN = uuid.uuid4().hex[:8]
FIXED = {"topic_id": uuid.UUID(int=1), "metadata_hash": 1, "assignment_timestamp": 1, "version": 1, "timestamp": 1}


def play(port: int) -> str:
    """Joins, a move, a regular expression, a static member that is replaced, leaves, the group's end."""
    with contextlib.closing(ConsumerScript(port, "records", TOKEN)) as script:
        script.prepare({"in": 4}, {"consumer.assignment.interval.ms": 0})
        script.learn_topics("in")
        script.join("a joins", "a", "in", rack_id="r1", server_assignor="uniform")
        script.join("b joins", "b", "in")
        script.beat("a is told", "a")
        script.beat("a lets go", "a", owned=MINE)
        script.beat("b takes", "b")
        script.leave("b leaves", "b")
        script.beat("a has all", "a", owned=MINE)
        script.leave("a leaves", "a")
        script.join("c joins", "c", regex=script.regex("in"))
        script.beat_until("c has all", "c", lambda answer: script.count("c") == 4)
        script.leave("c leaves", "c")
        script.join("d joins", "d", "in", instance_id="one")
        script.leave("d is away", "d", epoch=-2, instance_id="one")
        script.join("e is back", "e", "in", instance_id="one")
        script.leave("e leaves", "e", instance_id="one")
        script.delete_group("the group goes")
        return script.group_id


def normalised(data: Path, group_id: str) -> list[tuple[bytes, bytes | None]]:
    found = []
    for path in segments(data, group_id):
        for raw in decode_records(path.read_bytes()):
            assert raw.key is not None
            record = decode(raw.key, raw.value)
            assert record is not None, f"a record of an unknown type: {raw.key!r}"
            if record.value is not None:
                assert encode_value(record.value) == raw.value, f"{record.key} is not written as it was read"
            if getattr(record.key, "group_id", None) == group_id:
                value = None if record.value is None else encode_value(undecided(record.value))
                found.append((encode_key(record.key), value))
    return found


def undecided(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(undecided, value))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {each.name: undecided(getattr(value, each.name)) for each in fields(value)}
    changes.update((name, fixed) for name, fixed in FIXED.items() if changes.get(name))
    return replace(value, **changes)


@pytest.fixture(scope="module")
def logs(kafka: KafkaBroker) -> Any:
    with EmbeddedBroker(config=BROKER_SETTINGS) as ours:
        theirs = play(kafka.port)
        group_id = play(ours.port)
        assert group_id == theirs
        yield kafka.log_directory, ours.data_dir, group_id


def test_keys_and_values_are_kafkas(logs: tuple[Path, Path, str]) -> None:
    theirs, ours, group_id = logs
    expected, found = normalised(theirs, group_id), normalised(ours, group_id)
    assert words(found) == words(expected)
    assert found == expected
    kinds = {(type(decode(key, None).key).__name__, value is None) for key, value in found}  # type: ignore[union-attr]
    assert len(kinds) == 13, "every kind of record and its tombstone; of partition metadata the tombstone alone"


def test_kafkas_decoder_reads_our_log(logs: tuple[Path, Path, str]) -> None:
    _, ours, group_id = logs
    assert len(decoded_by_kafka(ours, group_id)) == len(normalised(ours, group_id))
