"""The same script to Apache Kafka 4.3.1 and to us: the same keys and values in `__consumer_offsets`, byte for byte.

What a run decides is put to fixed values first: times, and what depends on topic ids (the ids themselves and the
metadata hash). Everything else of a value is Kafka's own bytes. Where a group's offsets are deleted together, Kafka's
order is that of a hash map: such runs of tombstones are compared sorted. Batches are not compared: how records are
grouped depends on the backlog. `DumpLogSegments --offsets-decoder` prints both logs alike.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.interop.heartbeat_script import ALL, Script
from tests.interop.kafka_broker import KafkaBroker, run_tool

from headrace.broker.embedded import EmbeddedBroker
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import decode, encode_key, encode_value
from headrace.protocol.partitioner import partition_for_group
from headrace.protocol.record_batches import decode_records

pytestmark = [pytest.mark.interop, pytest.mark.slow]

DUMP = "org.apache.kafka.tools.DumpLogSegments"
SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.heartbeat.interval.ms": 500,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.min.session.timeout.ms": 1000,
}
GROUP_SETTINGS = {"streams.initial.rebalance.delay.ms": 0, "streams.assignment.interval.ms": 0}
TOKEN = uuid.uuid4().hex[:8]


def play(port: int, group_settings: dict[str, int] | None) -> str:
    """Joins, offsets, a move of tasks, a standby's topics, leaves, tombstones of offsets, members and groups."""
    with contextlib.closing(Script(port, "records", TOKEN)) as script:
        script.prepare({"in": 4, "other": 2, "log": 4}, group_settings)
        given = script.source("in", changelogs=["log"])
        script.join("a joins", "a", given, rack_id="r1")
        script.beat("a has its tasks", "a", owned=ALL)
        script.commit("a commits", "a", {("in", 0): 10, ("in", 3): 13, ("other", 1): 5}, metadata="note")
        script.commit("a commits again", "a", {("in", 0): 20})
        script.join("b joins", "b", given)
        script.beat("a is told", "a")
        script.beat("a lets go", "a", owned=ALL)
        script.beat("b takes", "b")
        script.beat("b has", "b", owned=ALL)
        script.commit("b commits", "b", {next(("in", n) for n in script.tasks["b"]["active"]["0"]): 7})
        script.leave("b leaves", "b")
        script.beat("a is alone", "a")
        script.beat("a has all", "a", owned=ALL)
        script.leave("a leaves", "a")
        script.commit("nobody commits", "", {("in", 1): 99}, epoch=-1)
        script.delete_offsets("an offset goes", {"in": [0]})
        script.delete_group("the group goes")
        script.commit("a simple group", "", {("in", 1): 5}, epoch=-1)
        script.delete_group("goes as well")
        return script.group_id


def segments(data: Path, group_id: str) -> list[Path]:
    return sorted((data / f"__consumer_offsets-{partition_for_group(group_id)}").glob("*.log"))


def normalised(data: Path, group_id: str) -> list[tuple[bytes, bytes | None]]:
    """The group's records in order, with what the run decides put to fixed values."""
    found = []
    for path in segments(data, group_id):
        for raw in decode_records(path.read_bytes()):
            assert raw.key is not None
            record = decode(raw.key, raw.value)
            assert record is not None, f"a record of an unknown type: {raw.key!r}"
            key: Any = record.key
            assert encode_key(key) == raw.key
            if record.value is not None:
                assert encode_value(record.value) == raw.value, f"{key} is not written as it was read"
            if getattr(key, "group_id", getattr(key, "group", None)) == group_id:
                value = None if record.value is None else encode_value(undecided(record.value))
                found.append((raw.key, value))
    return runs_sorted(found, lambda each: each[1] is None and isinstance(decode(*each).key, s.OffsetCommitKey))  # type: ignore[union-attr]


def runs_sorted(records: list[Any], is_of_a_run: Callable[[Any], bool]) -> list[Any]:
    sorted_: list[Any] = []
    for of_a_run, run in itertools.groupby(records, key=is_of_a_run):
        members = list(run)
        sorted_.extend(sorted(members, key=str) if of_a_run else members)
    return sorted_


def undecided(value: Any) -> Any:
    if isinstance(value, s.OffsetCommitValue):
        return replace(value, commit_timestamp=0, topic_id=value.topic_id and uuid.UUID(int=1))
    if isinstance(value, s.StreamsGroupMetadataValue):
        return replace(value, metadata_hash=min(value.metadata_hash, 1) if value.metadata_hash == 0 else 1)
    if isinstance(value, s.StreamsGroupTargetAssignmentMetadataValue):
        return replace(value, assignment_timestamp=min(value.assignment_timestamp, 1))
    return value


def words(records: list[tuple[bytes, bytes | None]]) -> list[str]:
    """For a person who has to see what differs."""
    return [str(decode(key, value)) for key, value in records]


@pytest.fixture(scope="module")
def brokers(kafka: KafkaBroker) -> Any:
    with EmbeddedBroker(config=SETTINGS) as ours:
        theirs = play(kafka.port, GROUP_SETTINGS)
        group_id = play(ours.port, None)
        assert group_id == theirs
        yield kafka.log_directory, ours.data_dir, group_id


def test_keys_and_values_are_kafkas(brokers: tuple[Path, Path, str]) -> None:
    theirs, ours, group_id = brokers
    expected, found = normalised(theirs, group_id), normalised(ours, group_id)
    assert words(found) == words(expected)
    assert found == expected
    kinds = {(type(decode(key, None).key).__name__, value is None) for key, value in found}  # type: ignore[union-attr]
    assert len(kinds) == 15, "every kind of record was written, and each one's tombstone"


def test_kafkas_decoder_reads_our_log_as_it_reads_its_own(brokers: tuple[Path, Path, str]) -> None:
    theirs, ours, group_id = brokers
    expected, found = decoded_by_kafka(theirs, group_id), decoded_by_kafka(ours, group_id)
    assert found == expected
    assert len(found) > 40


def decoded_by_kafka(data: Path, group_id: str) -> list[tuple[Any, Any]]:
    files = ",".join(str(path) for path in segments(data, group_id))
    out = run_tool(DUMP, ["--offsets-decoder", "--files", files])
    assert "isvalid: false" not in out
    found = []
    for key, value in re.findall(r" key: (\{.*?\}) payload: (.*)$", out, flags=re.MULTILINE):
        if group_id in json.loads(key)["data"].values():
            told = None if value == "<DELETE>" else json.loads(value)
            found.append((json.loads(key), without_times(told)))
    return runs_sorted(found, lambda each: each[1] is None and each[0]["type"] == "1")


def without_times(told: Any) -> Any:
    decided = ("commitTimestamp", "assignmentTimestamp", "metadataHash", "topicId", "currentStateTimestamp")
    if isinstance(told, dict):
        return {name: without_times(value) for name, value in told.items() if name not in decided}
    if isinstance(told, list):
        return [without_times(each) for each in told]
    return told
