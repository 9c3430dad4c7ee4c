"""The same program on Apache Kafka 4.3.1 and on our broker: the same results, and Kafka's own tools see the group.

Applications and our broker are processes of their own; what the sinks hold is read by librdkafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker, run_tool
from tests.longer import longer
from tests.spark.application.processes import (
    Application,
    BrokerProcess,
    active_tasks,
    caught_up,
    flight,
    group,
    newest,
    send_flights,
)

from headrace.client.admin import Admin

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

FLIGHTS = range(3000)
PARTITIONS = 4
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        load(broker.bootstrap_servers, "flights")
        yield broker


@pytest.fixture(scope="module")
def theirs(kafka: KafkaBroker) -> KafkaBroker:
    load(kafka.bootstrap_servers, "flights")
    return kafka


def load(bootstrap_servers: str, topic: str) -> None:
    with Admin(bootstrap_servers) as admin:
        admin.create_topics({topic: PARTITIONS}, replication_factor=1)
    send_flights(bootstrap_servers, FLIGHTS, PARTITIONS, topic)


def expected_delays() -> dict[str, Any]:
    """In plain Python, from the same flights."""
    by_origin: dict[str, list[float]] = {}
    for number in FLIGHTS:
        one = flight(number)
        if one["dep_delay"] is not None:
            by_origin.setdefault(one["origin"], []).append(one["dep_delay"])
    return {
        o: {"origin": o, "flights": len(d), "mean_delay": sum(d) / len(d), "worst": max(d)}
        for o, d in by_origin.items()
    }


def expected_late() -> dict[str, Any]:
    rows = [flight(number) for number in FLIGHTS]
    return {
        str(r["id"]): {"flight": str(r["id"]), "carrier": r["carrier"].upper(), "hours": r["dep_delay"] / 60}
        for r in rows
        if r["dep_delay"] is not None and r["dep_delay"] > 30
    }


@longer  # two instances do the same below
@pytest.mark.parametrize(
    ("program", "sink", "expected"),
    [
        ("flight_delays.py", "flight-delays-by-origin", expected_delays()),
        ("late_flights.py", "late-flights-late", expected_late()),
    ],
    ids=["stateful", "stateless"],
)
def test_the_same_results(
    program: str, sink: str, expected: dict[str, Any], theirs: KafkaBroker, ours: BrokerProcess, tmp_path: Path
) -> None:
    assert len(expected) > 4
    found = {}
    for name, broker in (("kafka", theirs), ("ours", ours)):
        Application(program, broker.bootstrap_servers, tmp_path / name).run_until_caught_up()
        found[name] = newest(broker.bootstrap_servers, sink)
    assert found["kafka"] == expected
    assert found["ours"] == found["kafka"]


def test_two_instances_share_the_tasks_on_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    servers, name, topic = kafka.bootstrap_servers, "shared-delays", "shared-flights"
    load(servers, topic)
    first, second = (
        Application("flight_delays.py", servers, tmp_path / instance, FLIGHTS_GROUP=name, FLIGHTS_TOPIC=topic)
        for instance in "ab"
    )
    try:
        first.start()
        second.start()
        with Admin(servers) as admin:
            wait_until(lambda: list(active_tasks(group(admin, name)).values()) == [4, 4], "4 + 4 tasks", first, second)
            wait_until(lambda: caught_up(admin, name), "caught up", first, second)
            kafkas_tool_sees_the_group(servers, name, topic, {first.member_id, second.member_id})
            assert newest(servers, f"{name}-by-origin") == expected_delays()

            assert second.stop() == 0, second.log.read_text()[-3000:]
            wait_until(lambda: active_tasks(group(admin, name)) == {first.member_id: 8}, "8 tasks of one", first)
            wait_until(lambda: first.open_tasks == 8, "8 open tasks", first)
            more = range(len(FLIGHTS), len(FLIGHTS) + 70)
            send_flights(servers, more, PARTITIONS, topic)
            wait_until(lambda: caught_up(admin, name), "caught up", first)
        counts = {origin: row["flights"] for origin, row in newest(servers, f"{name}-by-origin").items()}
        fresh = [flight(n) for n in more if flight(n)["dep_delay"] is not None]
        assert counts == {
            o: row["flights"] + sum(f["origin"] == o for f in fresh) for o, row in expected_delays().items()
        }
    finally:
        first.end()
        second.end()


def kafkas_tool_sees_the_group(servers: str, name: str, topic: str, members: set[str | None]) -> None:
    def tool(*arguments: str) -> list[list[str]]:
        out = run_tool(STREAMS_GROUPS, ["--bootstrap-server", servers, *arguments])
        return [line.split() for line in out.splitlines() if line.strip()]

    assert [name, "Stable"] in tool("--list", "--state")

    offsets = tool("--describe", "--group", name, "--verbose")
    assert offsets[0] == [
        *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LEADER-EPOCH", "LOG-END-OFFSET", "OFFSET-LAG"),
    ]
    flights = {row[2]: row[3:] for row in offsets[1:] if row[1] == topic}
    each = str(len(FLIGHTS) // PARTITIONS)
    assert flights == {str(p): [each, "-", each, "0"] for p in range(PARTITIONS)}
    assert {row[1] for row in offsets[1:]} == {topic, f"{name}-by-origin-repartition"}
    assert all(row[-1] == "0" for row in offsets[1:]), "no lag anywhere"

    rows = tool("--describe", "--group", name, "--members")
    assert rows[0] == ["GROUP", "MEMBER", "PROCESS", "CLIENT-ID", "ASSIGNMENTS"]
    assert {row[1] for row in rows[1:]} == members
    assert all(row[4].startswith("ACTIVE:") for row in rows[1:]), rows
    state = tool("--describe", "--group", name, "--state")
    assert state[1][0] == name
    assert state[1][-2:] == ["Stable", "2"]
