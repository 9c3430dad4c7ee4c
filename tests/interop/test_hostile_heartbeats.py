"""A table of malformed and hostile heartbeats: every field, to Apache Kafka 4.3.1 and to our broker in one run.

The answers are equal, or the case stands in a table of intended differences with its reason; the tables are exact both
ways. Afterwards our broker still serves: the member that was there all the time, and newcomers.
"""

from __future__ import annotations

import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
from tests.interop.heartbeat_script import Recording, Script, differences
from tests.interop.hostile_requests import (
    ARRAYS,
    BEATS,
    FRAMES,
    JOINS,
    NULLABLE_STRINGS,
    OVERFLOWING,
    STRINGS,
    frame,
)
from tests.interop.kafka_broker import KafkaBroker

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import kafka_name
from headrace.protocol.request_codec import decode_response

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 500,
}
TOPICS = {"in": 2, "other": 3}
PATIENCE_S = 20.0

REASONS: Mapping[str, tuple[str, ...]] = {
    "As Kafka 4.4, which takes instance ids, task offsets and warm-up tasks; Kafka 4.3 refuses them before all else.": (
        "beaten: warm-up tasks",
        "beaten: instance blank",
        "beaten: instance",
        "beaten: task offsets",
        "beaten: task offsets, none",
        "beaten: task offsets twice",
        "beaten: task offsets of nothing",
        "beaten: task end offsets",
        "beaten: task end offsets twice",
        "beaten: for a while, as an instance",
        "beaten: is as it was",
        "joined: warm-up tasks",
        "joined: instance blank",
        "joined: instance",
        "joined: task offsets",
        "joined: task offsets, none",
        "joined: task offsets twice",
        "joined: task offsets of nothing",
        "joined: task end offsets",
        "joined: task end offsets twice",
    ),
    "A new endpoint is told to everybody at once (as Kafka 4.4).": (
        "beaten: endpoint without host",
        "beaten: endpoint at port 0",
        "beaten: endpoint at port 65535",
    ),
    "A member whose owned tasks show that it has not heard of its tasks is told again.": (
        "beaten: owns active as standby",
    ),
    "Kafka has an unhandled exception, we have words.": (
        "beaten: client tag twice",
        "joined: client tag twice",
        "joined: topology epoch -1",
        "joined: topology epoch least",
        "joined: a subtopology twice",
        "joined: a subtopology twice, differing",
        "joined: a changelog twice",
        "joined: a repartition topic twice",
        "joined: topic config twice",
        "joined: repartition topic with a negative count",
        "joined: copartition index too great",
        "joined: copartition index 32767",
        "joined: copartition index negative",
        "joined: copartition index of no repartition topic",
    ),
    "One wording for all requests; Kafka has two.": (
        "beaten: a group that is none",
        "framed: honest",
        "framed: user endpoint marked 0",
        "framed: an unknown tagged field",
        "framed: a tagged field twice",
        "framed: bytes behind the end",
    ),
    "A length of 2^31 and more is a lie; in Kafka it overflows and means null.": (
        *(f"framed: {name} of {size} bytes" for name in NULLABLE_STRINGS for size in OVERFLOWING),
        *(f"framed: {size} {name}" for name in ARRAYS for size in OVERFLOWING),
    ),
    "Bytes that are no UTF-8 are no string; Java puts a mark in the place of each.": (
        *(f"framed: {name} no UTF-8" for name in STRINGS),
    ),
    "A marker or a bool that is neither of its two values is malformed; Kafka looks at the sign, or for any bit.": (
        "framed: topology marked -2",
        "framed: shutdown 2",
        "framed: shutdown 255",
    ),
}
INTENDED: Mapping[str, str] = {case: reason for reason, cases in REASONS.items() for case in cases}
# What we say in every answer to a heartbeat and Kafka 4.3.1 does not: (what it says, what we and Kafka 4.4 say).
AS_KAFKA_44 = {"offset interval": (0, 60_000)}


@pytest.fixture(scope="module")
def brokers(kafka_tools: None) -> Iterator[tuple[int, int]]:
    """The ports of Kafka and of ours. Kafka is one of its own: it is about to be hurt."""
    with KafkaBroker("4.3.1", SETTINGS) as kafka, EmbeddedBroker(config=SETTINGS) as ours:
        yield kafka.port, ours.port


def beaten(port: int) -> Recording:
    """A member lives among hostile heartbeats in its name."""
    with contextlib.closing(Script(port, "beats", uuid.uuid4().hex[:8])) as s:
        s.prepare(TOPICS)
        s.join("joins", "a", s.source("in"))
        for name, fields in BEATS.items():
            s.survive(name, partial(s.beat, name, "a", **fields(s)))
        s.beat("lives", "a")
        s.describe("is as it was")
        s.join("others may join", "b", s.source("in"))
        return s.recording


def joined(port: int) -> Recording:
    """Newcomers, each in a group of its own."""
    with contextlib.closing(Script(port, "joins", uuid.uuid4().hex[:8])) as s:
        s.prepare(TOPICS)
        for name, fields in JOINS.items():
            values = {"given": s.source("in"), "group_id": s.name(name), **_as_join(fields(s))}
            s.survive(name, partial(s.join, name, "a", **values))
        s.join("others may join", "b", s.source("in"))
        return s.recording


def _as_join(fields: Mapping[str, object]) -> dict[str, object]:
    return {("given" if name == "topology" else name): value for name, value in fields.items()}


def framed(port: int) -> Recording:
    """What comes back for bytes: an error by name and its message, or nothing but the end of the connection."""
    group_id = uuid.uuid4().hex.encode()
    return {name: _sent(port, frame(group_id, *made), group_id) for name, made in FRAMES.items()}


def _sent(port: int, data: bytes, group_id: bytes) -> dict[str, object]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            part = connection.recv(65_536)
            if not part:
                return {"answer": "closed"}
            answer += part
    _, response = decode_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, answer[4:])
    message = response.error_message or ""  # type: ignore[attr-defined]
    return {
        "answer": kafka_name(response.error_code),  # type: ignore[attr-defined]
        "message": message.replace(group_id.decode(), "group"),
    }


@pytest.mark.parametrize("hurt", [beaten, joined, framed])
def test_hostile_heartbeats_are_answered_like_kafka(brokers: tuple[int, int], hurt: Callable[[int], Recording]) -> None:
    kafka, ours = brokers
    differing: dict[str, dict[str, object]] = {}
    for (step, field), values in differences(hurt(kafka), hurt(ours)).items():
        if AS_KAFKA_44.get(field) != values:
            differing.setdefault(f"{hurt.__name__}: {step}", {})[field] = values
    unexpected = {case: fields for case, fields in differing.items() if case not in INTENDED}
    assert not unexpected, "\n".join(f"{case}: {str(fields)[:300]}" for case, fields in unexpected.items())
    expected = {case for case in INTENDED if case.startswith(f"{hurt.__name__}: ")}
    assert differing.keys() == expected, "no longer different: take them out of the table"
    assert _sent(ours, frame(b"g", {}), b"g")["answer"] == "GROUP_ID_NOT_FOUND", "our broker still serves"


def test_the_tables_are_large_and_name_cases_that_exist() -> None:
    assert len(BEATS) + len(JOINS) + len(FRAMES) > 200
    names = {"beaten": {*BEATS, "lives", "is as it was"}, "joined": {*JOINS}, "framed": {*FRAMES}}
    for case in INTENDED:
        kind, _, name = case.partition(": ")
        assert name in names[kind], case
