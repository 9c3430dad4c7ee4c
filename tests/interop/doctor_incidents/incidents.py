"""The incidents with one cause each; `healthy_runs` has those without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.harness.polling import wait_until
from tests.interop.doctor_incidents.stage import WAIT_S, Incident, Stage
from tests.interop.group_members import Worker, topology
from tests.interop.kafka_broker import run_tool

__all__ = ["INCIDENTS"]

# Times are short so that an incident takes seconds; what happens is the same as with minutes.
CLASSIC: dict[str, Any] = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 300}
MODERN: dict[str, Any] = {"group_protocol": "consumer"}


def slow_batch(client: str, **settings: Any) -> Callable[[Stage], None]:
    """Two members; the batches of one take longer than max.poll.interval.ms, twice."""

    def provoke(stage: Stage) -> None:
        calm = stage.join(client, "calm", **settings)
        slow = stage.join(client, "slow", max_poll_interval_ms=4_000, **settings)
        stage.settle(calm, slow)
        for _ in range(2):
            stage.write(20)
            slow.tell("slow 9000")
            stage.settle(calm)
            stage.settle(calm, slow)

    return provoke


def suspended(client: str, **settings: Any) -> Callable[[Stage], None]:
    """The whole process of one member stops for longer than its session, as in a long garbage collection."""

    def provoke(stage: Stage) -> None:
        calm, paused = stage.join(client, "calm", **settings), stage.join(client, "paused", **settings)
        stage.settle(calm, paused)
        for _ in range(2):
            paused.suspend()
            stage.settle(calm)
            time.sleep(2)
            paused.resume()
            wait_until(lambda: len(calm.assigned) < stage.partitions, "paused is back", paused, timeout_s=WAIT_S)
            stage.settle(calm, paused)

    return provoke


def crash_loop(client: str, **settings: Any) -> Callable[[Stage], None]:
    """One instance crashes right after its start, four times."""

    def provoke(stage: Stage) -> None:
        calm = stage.join(client, "calm", **settings)
        stage.settle(calm)
        for _ in range(5):
            bad = stage.join(client, "crashing", **settings)
            stage.settle(calm, bad)
            bad.kill()
            stage.settle(calm)

    return provoke


def exit_loop(client: str, **settings: Any) -> Callable[[Stage], None]:
    """One instance ends itself in an orderly way after each start, four times."""

    def provoke(stage: Stage) -> None:
        calm = stage.join(client, "calm", **settings)
        stage.settle(calm)
        for _ in range(5):
            bad = stage.join(client, "restarting", **settings)
            stage.settle(calm, bad)
            bad.close()
            stage.settle(calm)

    return provoke


def rolling_deploy(client: str, **settings: Any) -> Callable[[Stage], None]:
    """Three instances are replaced one after the other, without static membership."""

    def provoke(stage: Stage) -> None:
        running = [stage.join(client, f"app-{number}-v1", **settings) for number in range(3)]
        stage.settle(*running)
        for number in range(3):
            running.pop(0).close()
            running.append(stage.join(client, f"app-{number}-v2", **settings))
            stage.settle(*running)

    return provoke


def hot_partition(stage: Stage) -> None:
    """One partition receives fifty times the records of the others."""
    pair = [stage.join("librdkafka", f"reader-{number}", **CLASSIC) for number in range(2)]
    stage.settle(*pair)
    for member in pair:
        member.tell("pace 5")
    for _ in range(10):
        stage.write(20)
        stage.write(1_000, partition=2)
        time.sleep(0.8)


def coordinator_away(stage: Stage) -> None:
    """The broker that coordinates the group is away for eight seconds."""
    pair = [stage.join("java", f"reader-{number}", session_timeout_ms=30_000) for number in range(2)]
    stage.settle(*pair)
    stage.broker.stop()
    time.sleep(8)
    stage.broker.start()
    wait_until(lambda: stage.admin.list_groups(), "the broker is back", timeout_s=WAIT_S)
    time.sleep(6)
    stage.settle(*pair)


def hanging_transaction(stage: Stage) -> None:
    """A transactional producer dies in the middle of a transaction; its timeout is fifteen minutes."""
    from confluent_kafka import Producer

    readers = [stage.join("java", "reader", isolation_level="read_committed")]
    stage.settle(*readers)
    producer = Producer(
        {"bootstrap.servers": stage.servers, "transactional.id": "billing-7", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(stage.partitions):
        producer.produce(stage.topic, b"half", partition=number)
    producer.flush()
    stage.open.callback(lambda: producer.purge())
    for _ in range(12):
        stage.write(50)
        time.sleep(1)


def rare_heartbeats(stage: Stage) -> None:
    """Heartbeats are almost as far apart as the session is long: a pause of a second ends the membership."""
    rare: dict[str, Any] = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 2_800}
    calm, short = stage.join("java", "calm", **CLASSIC), stage.join("java", "rare", **rare)
    stage.settle(calm, short)
    for _ in range(4):
        short.suspend()
        time.sleep(1.5)
        short.resume()
        time.sleep(4)
    stage.settle(calm, short)


def two_assignors(stage: Stage) -> None:
    """A new member has no assignor in common with the others."""
    first = stage.join("java", "sticky", partition_assignment_strategy=_java("CooperativeStickyAssignor"), **CLASSIC)
    stage.settle(first)
    other = stage.join("librdkafka", "ranged", partition_assignment_strategy="range", **CLASSIC)
    stage.logged(other, "nconsistent")
    time.sleep(3)


def _java(assignor: str) -> str:
    return f"org.apache.kafka.clients.consumer.{assignor}"


def more_partitions(client: str, **settings: Any) -> Callable[[Stage], None]:
    """The topic of a running group receives two more partitions."""

    def provoke(stage: Stage) -> None:
        pair = [stage.join(client, f"reader-{number}", **settings) for number in range(2)]
        stage.settle(*pair)
        stage.admin.create_partitions({stage.topic: stage.partitions + 2})
        stage.settle(*pair, count=stage.partitions + 2)

    return provoke


def short_session(provoke: Callable[[Stage], None]) -> Callable[[Stage], None]:
    """The same in a group of the consumer protocol, whose session is a setting of the group."""

    def provoke_then(stage: Stage) -> None:
        changes = {"consumer.session.timeout.ms": "4000", "consumer.heartbeat.interval.ms": "500"}
        stage.admin.alter_configs("group", stage.group, changes)
        provoke(stage)

    return provoke_then


def other_topics(stage: Stage) -> None:
    """Instances change their topics one after the other while they run."""
    second = f"{stage.topic}-2"
    stage.admin.create_topics({second: 2}, replication_factor=1)
    pair = [stage.join("librdkafka", f"reader-{number}", **CLASSIC) for number in range(2)]
    stage.settle(*pair)
    for member in pair:
        member.tell(f"subscribe {stage.topic},{second}")
        time.sleep(3)
    stage.settle(*pair, count=stage.partitions + 2)


def missing_source(stage: Stage) -> None:
    """A streams application names a source topic that does not exist."""
    worker = Worker(stage.servers, topology(stage.group, "orders-misspelt"), stage.group, "app-0")
    stage.open.callback(worker.close)
    time.sleep(4)


def same_instance_id(stage: Stage) -> None:
    """Two processes are given the same group.instance.id."""
    first = stage.join("librdkafka", "pod-0", group_instance_id="pod-0", **CLASSIC)
    stage.settle(first)
    double = stage.join("librdkafka", "pod-0-double", group_instance_id="pod-0", **CLASSIC)
    stage.logged(first, "FENCED", "fenced")
    stage.settle(double)


def access_withdrawn(stage: Stage) -> None:
    """READ on the group is taken away from the application's user."""
    reader = stage.join("java", "reader", **CLASSIC)
    stage.settle(reader)
    acl = ["--bootstrap-server", stage.servers, "--deny-principal", "User:ANONYMOUS", "--group", stage.group]
    run_tool("org.apache.kafka.tools.AclCommand", ["--add", "--operation", "Read", *acl])
    stage.logged(reader, "AuthorizationException")
    run_tool("org.apache.kafka.tools.AclCommand", ["--remove", "--force", "--operation", "Read", *acl])


def positions_deleted(stage: Stage) -> None:
    """Records behind the group's position are deleted while the group is down for longer than the retention."""
    reader = stage.join("java", "reader", **CLASSIC)
    stage.settle(reader)
    time.sleep(2)
    reader.close()
    stage.write(100)
    stage.admin.delete_records({(stage.topic, number): 110 for number in range(stage.partitions)})
    again = stage.join("java", "reader-again", **CLASSIC)
    stage.settle(again)
    stage.logged(again, "out of range")
    time.sleep(2)


def full_group(stage: Stage) -> None:
    """A sixth member joins a group that may have five (group.max.size)."""
    five = [stage.join("librdkafka", f"reader-{number}", **CLASSIC) for number in range(5)]
    stage.settle(*five)
    sixth = stage.join("librdkafka", "reader-5", **CLASSIC)
    stage.logged(sixth, "maximum size", "MAX_SIZE", "max size")
    time.sleep(2)


def _incident(name: str, cause: str, clients: str, broker: str, provoke: Callable[[Stage], None]) -> Incident:
    title = (provoke.__doc__ or "").strip() or TITLES[cause]
    return Incident(name=name, cause=cause, clients=clients, broker=broker, title=title, provoke=provoke)


TITLES = {
    "slow-batches": "Batches of one member take longer than max.poll.interval.ms.",
    "removed-member": "The process of one member is suspended for longer than its session, and its log has no line.",
    "partition-change": "The topic of a running group receives two more partitions.",
    "session-expired": "The process of one member is suspended for longer than its session.",
    "flapping-member": "One instance is killed or ends right after each start.",
    "rolling-deploy-without-static-members": "Three instances are replaced one after another.",
}
SIX_PARTITIONS = frozenset({"full-group"})

INCIDENTS: Sequence[Incident] = (
    _incident("slow-batch-java", "slow-batches", "Java", "kafka", slow_batch("java", **CLASSIC)),
    _incident(
        "slow-batch-java-consumer", "slow-batches", "Java (consumer protocol)", "kafka", slow_batch("java", **MODERN)
    ),
    _incident("slow-batch-librdkafka", "slow-batches", "librdkafka", "kafka", slow_batch("librdkafka", **CLASSIC)),
    _incident("slow-batch-aiokafka", "slow-batches", "aiokafka", "headrace", slow_batch("aiokafka", **CLASSIC)),
    _incident("slow-batch-headrace", "slow-batches", "Headrace", "kafka", slow_batch("headrace", **MODERN)),
    _incident("pause-java", "session-expired", "Java", "headrace", suspended("java", **CLASSIC)),
    _incident("pause-librdkafka", "session-expired", "librdkafka", "kafka", suspended("librdkafka", **CLASSIC)),
    _incident("pause-aiokafka", "session-expired", "aiokafka", "kafka", suspended("aiokafka", **CLASSIC)),
    _incident(
        "pause-java-consumer",
        "session-expired",
        "Java (consumer protocol)",
        "kafka",
        short_session(suspended("java", **MODERN)),
    ),
    _incident(
        "pause-librdkafka-consumer",
        "removed-member",
        "librdkafka (consumer protocol)",
        "kafka",
        short_session(suspended("librdkafka", **MODERN)),
    ),
    _incident("crash-loop-aiokafka", "flapping-member", "aiokafka", "headrace", crash_loop("aiokafka", **CLASSIC)),
    _incident("exit-loop-librdkafka", "flapping-member", "librdkafka", "kafka", exit_loop("librdkafka", **CLASSIC)),
    _incident(
        "rolling-java", "rolling-deploy-without-static-members", "Java", "kafka", rolling_deploy("java", **CLASSIC)
    ),
    _incident(
        "rolling-headrace",
        "rolling-deploy-without-static-members",
        "Headrace",
        "headrace",
        rolling_deploy("headrace", **MODERN),
    ),
    _incident("hot-partition", "hot-partition", "librdkafka", "kafka", hot_partition),
    _incident("coordinator-away", "unreachable-coordinator", "Java", "kafka", coordinator_away),
    _incident("hanging-transaction", "hanging-transaction", "Java, librdkafka", "kafka", hanging_transaction),
    _incident("rare-heartbeats", "unsuitable-settings", "Java", "headrace", rare_heartbeats),
    _incident("two-assignors", "inconsistent-assignors", "Java, librdkafka", "kafka", two_assignors),
    _incident("more-partitions", "partition-change", "Headrace", "kafka", more_partitions("headrace", **MODERN)),
    _incident(
        "more-partitions-java",
        "partition-change",
        "Java",
        "kafka",
        more_partitions("java", metadata_max_age_ms=2_000, **CLASSIC),
    ),
    _incident("other-topics", "subscription-change", "librdkafka", "headrace", other_topics),
    _incident("missing-source", "not-ready", "Headrace", "kafka", missing_source),
    _incident("same-instance-id", "fenced-instance", "librdkafka", "kafka", same_instance_id),
    _incident("access-withdrawn", "not-authorized", "Java", "kafka", access_withdrawn),
    _incident("positions-deleted", "offset-out-of-range", "Java", "headrace", positions_deleted),
    _incident("full-group", "group-max-size", "librdkafka", "kafka", full_group),
)
