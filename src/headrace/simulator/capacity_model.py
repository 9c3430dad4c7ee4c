"""Capacity model: what an application of a given size needs of Kafka and of Spark, from measured unit costs.

Pure arithmetic: every result is a product of the workload and of figures in `unit_costs.json`, which
`benchmarks/unit_costs.py` measures. Results are linear; queues, skew and failures need the headroom of `TARGET_LOAD`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

__all__ = ["OPERATORS", "Capacity", "Limit", "UnitCosts", "Workload", "estimate", "read_unit_costs"]

OPERATORS = ("copy", "count", "count, a million keys")
TARGET_LOAD = 0.6
"""Share of a resource that should be planned for: the rest is for peaks, catch-up after a failure and skew."""

STATE_RECORDS_PER_TRANSACTION = 2
"""Records of `__transaction_state` for each transaction: Prepare and Complete."""

PARTITIONS_PER_TASK = 2
"""Partitions that a stateful task writes: its sink and its changelog."""

# The measured instance had two cores, and each further core means one more Python worker of about 125 MB.
MEASURED_CORES = 2
WORKER_MB_PER_CORE = 125


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """Measured costs: microseconds per record, milliseconds per cycle, bytes per key. See `unit_costs.json`."""

    operators: Mapping[str, Mapping[str, float]]
    cycle_ms: float
    task_ms: float
    transaction_ms: float
    broker_cycle_ms: float
    broker_task_ms: float
    broker_transaction_ms: float
    store_bytes_per_key: float
    changelog_bytes_per_key: float
    idle_percent_of_core: float
    idle_mb: float
    restore_bytes_per_cpu_s: float
    heartbeat_us: float
    description_ms: float
    description_members: int
    assignment_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Size of an application.

    Attributes:
        instances: processes of the application, each with `cores`.
        tasks: stateful tasks, as many as partitions of the source.
        records_per_s: records of the source.
        keys: distinct keys of the store, over all tasks.
        operator: one of OPERATORS.
        cycle_ms: time from one micro-batch of an instance to the next.
        broker_mb_per_s: what a broker of the cluster serves, reads and writes together.
    """

    instances: int = 1_000
    tasks: int = 10_000
    records_per_s: int = 10_000_000
    cores: int = 4
    record_bytes: int = 100
    keys: int = 1_000_000_000
    operator: str = "count, a million keys"
    cycle_ms: int = 1_000
    exactly_once: bool = True
    standbys: int = 1
    brokers: int = 30
    replication: int = 3
    heartbeat_interval_ms: int = 500
    broker_mb_per_s: int = 500
    instance_restore_mb_per_s: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Load of one resource: 1.0 is all of it. `remedy`: the change that lowers it."""

    resource: str
    load: float
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Needs of a workload.

    Attributes:
        spark: needs of the instances, name → value.
        kafka: needs of the cluster, name → value.
        transactions: the same workload with one transaction per slot (as it is) and per task, name → (slot, task).
        limits: loads of resources, the highest first.
        instances_for_target: instances of this size that bring their cores to TARGET_LOAD.
    """

    spark: Mapping[str, float]
    kafka: Mapping[str, float]
    transactions: Mapping[str, tuple[float, float]]
    limits: tuple[Limit, ...]
    instances_for_target: int


def read_unit_costs(document: Mapping[str, Any] | None = None) -> UnitCosts:
    """Return the unit costs of a document of `benchmarks/unit_costs.py`; without one, of the one in the package."""
    if document is None:
        document = json.loads(files("headrace.simulator").joinpath("unit_costs.json").read_text(encoding="utf-8"))
    application, group, restore = document["application"], document["group"], document["restore"]
    own, broker = application["cycles"]["application"], application["cycles"]["broker"]
    return UnitCosts(
        operators=MappingProxyType(application["operators"]),
        cycle_ms=own["cycle_ms"],
        task_ms=own["task_ms"],
        transaction_ms=own["transaction_ms"],
        broker_cycle_ms=broker["cycle_ms"],
        broker_task_ms=broker["task_ms"],
        broker_transaction_ms=broker["transaction_ms"],
        store_bytes_per_key=application["store_bytes_per_key"],
        changelog_bytes_per_key=application["changelog_bytes_per_key"],
        idle_percent_of_core=application["idle_percent_of_core"],
        idle_mb=application["idle_mb"],
        restore_bytes_per_cpu_s=restore["bytes_per_cpu_s"],
        heartbeat_us=group["heartbeat_us"],
        description_ms=group["description_ms"],
        description_members=group["members"],
        assignment_ms=group["assignment_ms"],
    )


def estimate(workload: Workload, costs: UnitCosts) -> Capacity:
    """Return what the workload needs."""
    spark, kafka = _spark(workload, costs), _kafka(workload, costs)
    return Capacity(
        spark=spark,
        kafka=kafka,
        transactions=_transactions(workload),
        limits=tuple(sorted(_limits(workload, costs, spark, kafka), key=lambda limit: -limit.load)),
        instances_for_target=_instances_for_target(workload, costs),
    )


def _slots(workload: Workload) -> int:
    """Return the slots of an instance: each runs some of its tasks, in one transaction per micro-batch."""
    # Not more slots than tasks: an empty slot opens no transaction.
    return max(1, min(workload.cores, math.ceil(workload.tasks / workload.instances)))


def _cycles_per_s(workload: Workload) -> float:
    return 1000 / workload.cycle_ms


def _cores(workload: Workload, costs: UnitCosts) -> tuple[float, float]:
    """Return the cores that an instance needs for records, and those that it needs for its cycles."""
    # Two kinds of work: per record, which is divided by more instances, and per cycle, which is not. An application
    # with many small instances is limited by the second one.
    records = workload.records_per_s / workload.instances * costs.operators[workload.operator]["application_us"] / 1e6
    cycle_ms = costs.cycle_ms + workload.tasks / workload.instances * costs.task_ms
    if workload.exactly_once:
        cycle_ms += _slots(workload) * costs.transaction_ms
    return records, cycle_ms * _cycles_per_s(workload) / 1000 + costs.idle_percent_of_core / 100


def _spark(workload: Workload, costs: UnitCosts) -> dict[str, float]:
    records, cycles = _cores(workload, costs)
    copies = (1 + workload.standbys) * workload.keys / workload.instances
    task_bytes = workload.keys / workload.tasks * costs.changelog_bytes_per_key
    return {
        "tasks per instance": workload.tasks / workload.instances,
        "records per second and instance": workload.records_per_s / workload.instances,
        "cores for records": records,
        "cores for cycles": cycles,
        "cores needed per instance": records + cycles,
        "cores needed in all": workload.instances * (records + cycles),
        "memory per instance, MB": costs.idle_mb + WORKER_MB_PER_CORE * max(0, workload.cores - MEASURED_CORES),
        "stores per instance, MB": copies * costs.store_bytes_per_key / 1e6,
        "restore of one task, s": task_bytes / (workload.instance_restore_mb_per_s * 1e6),
        "restore of one instance's tasks at one other, s": workload.tasks
        / workload.instances
        * task_bytes
        / (workload.instance_restore_mb_per_s * 1e6),
    }


def _kafka(workload: Workload, costs: UnitCosts) -> dict[str, float]:
    slots, cycles = _slots(workload), _cycles_per_s(workload)
    transactions = workload.instances * slots * cycles if workload.exactly_once else 0.0
    written = workload.records_per_s * workload.record_bytes
    # A key that is counted several times in a cycle is written once; each record at worst changes one key.
    per_cycle = min(workload.keys, workload.records_per_s * workload.cycle_ms / 1000)
    changelog = 0.0 if workload.operator == "copy" else per_cycle * cycles * costs.changelog_bytes_per_key
    sink = written if workload.operator == "copy" else changelog
    partitions = workload.tasks * (2 if workload.operator == "copy" else 3)
    # Each input record is written by its producer to `replication` brokers and read once by the application; changelog
    # and sink are written to as many, and each standby reads the changelog.
    served = written * (workload.replication + 1) + (changelog + sink) * workload.replication
    if workload.operator != "copy":
        served += changelog * workload.standbys
    return {
        "partitions": partitions,
        "replicas per broker": partitions * workload.replication / workload.brokers,
        "transactions per second": transactions,
        "transactions per second and coordinator": transactions / workload.brokers,
        "markers per second": _markers(workload, slots) if workload.exactly_once else 0.0,
        "offset commits per second": workload.instances * cycles * (slots if workload.exactly_once else 1),
        "offset records per second, all in one partition": workload.tasks * cycles,
        "heartbeats per second, all at one broker": workload.instances * 1000 / workload.heartbeat_interval_ms,
        "megabytes per second and broker": served / workload.brokers / 1e6,
        "changelogs, GB": workload.keys * costs.changelog_bytes_per_key / 1e9,
        "cores of an embedded broker": _broker_cores(workload, costs, transactions),
    }


def _broker_cores(workload: Workload, costs: UnitCosts, transactions: float) -> float:
    cycles_ms = workload.instances * costs.broker_cycle_ms + workload.tasks * costs.broker_task_ms
    return (
        workload.records_per_s * costs.operators[workload.operator]["broker_us"] / 1e6
        + cycles_ms * _cycles_per_s(workload) / 1000
        + transactions * costs.broker_transaction_ms / 1000
        + workload.instances * 1000 / workload.heartbeat_interval_ms * costs.heartbeat_us / 1e6
    )


def _markers(workload: Workload, transactions_per_instance: float) -> float:
    """Return control records per second: one in each written partition, and one in the group's offsets."""
    cycles = _cycles_per_s(workload)
    written = 1 if workload.operator == "copy" else PARTITIONS_PER_TASK
    return (workload.tasks * written + workload.instances * transactions_per_instance) * cycles


def _transactions(workload: Workload) -> dict[str, tuple[float, float]]:
    """Return the costs of transactions per slot and per task."""
    cycles, slots, tasks = _cycles_per_s(workload), _slots(workload), workload.tasks / workload.instances
    ways = [workload.instances * each * cycles for each in (slots, tasks)]
    return {
        "transactions per second": (ways[0], ways[1]),
        "records of __transaction_state per second": (
            ways[0] * STATE_RECORDS_PER_TRANSACTION,
            ways[1] * STATE_RECORDS_PER_TRANSACTION,
        ),
        "markers per second": (_markers(workload, slots), _markers(workload, tasks)),
        "markers per second in the group's offsets partition": (ways[0], ways[1]),
    }


def _limits(
    workload: Workload, costs: UnitCosts, spark: Mapping[str, float], kafka: Mapping[str, float]
) -> list[Limit]:
    # During a rebalance each member asks for the description of the group every 2 s, all together at most 500 times per
    # second; each answer lists all members (`target_assignment_poller`).
    looks = min(500.0, workload.instances / 2)
    description_ms = costs.description_ms * workload.instances / costs.description_members
    return [
        Limit(
            resource="cores of an instance",
            load=spark["cores needed per instance"] / workload.cores,
            remedy="more instances, more cores, or a longer trigger_interval_ms",
        ),
        Limit(
            resource="bandwidth of a broker",
            load=kafka["megabytes per second and broker"] / workload.broker_mb_per_s,
            remedy="more brokers, compression",
        ),
        Limit(
            resource="replicas of a broker (Kafka recommends at most 4,000)",
            load=kafka["replicas per broker"] / 4_000,
            remedy="more brokers, fewer tasks",
        ),
        Limit(
            resource="embedded broker (one core serves all clients)",
            load=kafka["cores of an embedded broker"],
            remedy="Apache Kafka",
        ),
        Limit(
            resource="group coordinator in a rebalance (one core, descriptions)",
            load=looks * description_ms / 1000,
            remedy="several applications with fewer instances",
        ),
        Limit(
            resource="group coordinator in steady state (one core, heartbeats)",
            load=kafka["heartbeats per second, all at one broker"] * costs.heartbeat_us / 1e6,
            remedy="a longer headrace.heartbeat.max.interval.ms",
        ),
    ]


def _instances_for_target(workload: Workload, costs: UnitCosts) -> int:
    """Return how many instances bring the cores of each to TARGET_LOAD: cycles cost the same on each instance."""
    records_us = workload.records_per_s * costs.operators[workload.operator]["application_us"] / 1e6
    cycle_ms = costs.cycle_ms + (workload.cores * costs.transaction_ms if workload.exactly_once else 0.0)
    fixed = cycle_ms * _cycles_per_s(workload) / 1000 + costs.idle_percent_of_core / 100
    shared = records_us + workload.tasks * costs.task_ms * _cycles_per_s(workload) / 1000
    # No number of instances helps if the fixed part alone exceeds the target: 0 stands for that.
    room = TARGET_LOAD * workload.cores - fixed
    return math.ceil(shared / room) if room > 0 else 0
