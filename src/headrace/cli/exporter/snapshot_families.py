"""Prometheus families of a snapshot: kafka_exporter's names where it has one, `headrace_…` for the rest. Pure.

`METRICS` is the list of all families; the reference page is written from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.client.admin_groups import plain_name
from headrace.client.admin_results import StreamsGroupDescription
from headrace.metrics.prometheus_text import Family, counter, gauge

__all__ = ["METRICS", "CollectionHealth", "Metric", "health_families", "snapshot_families"]

Rows = list[tuple[float, Mapping[str, str]]]
_STATES: Mapping[str, tuple[str, ...]] = {
    "classic": ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    "consumer": ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    "streams": ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead"),
    "share": ("Empty", "Stable", "Dead"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family: MBean-like prefix and attribute (see `exporter_name`), type, labels and help."""

    prefix: str
    attribute: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    help: str

    def family(self, rows: Rows) -> Family:
        """Return the family with these values."""
        make = counter if self.kind == "counter" else gauge
        return make(self.prefix, self.attribute, self.help, rows)

    @property
    def name(self) -> str:
        """The name in Prometheus."""
        return self.family([]).name


_TOPIC, _GROUP, _OURS, _EXPORTER = (
    "kafka:type=topic",
    "kafka:type=consumergroup",
    "headrace:type=consumergroup",
    "headrace:type=exporter",
)
_BY_PARTITION = ("topic", "partition")
_BY_GROUP = ("consumergroup",)
_BY_OFFSET = ("consumergroup", "topic", "partition")
_BY_TOPIC = ("consumergroup", "topic")


def _gauge(prefix: str, attribute: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(prefix=prefix, attribute=attribute, kind="gauge", labels=labels, help=text)


def _counter(prefix: str, attribute: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(prefix=prefix, attribute=attribute, kind="counter", labels=labels, help=text)


_ALL = (
    _gauge("kafka", "brokers", (), "Brokers of the cluster."),
    _gauge("kafka", "broker_info", ("id", "address"), "1 for each broker."),
    _gauge(_TOPIC, "partitions", ("topic",), "Partitions of a topic."),
    _gauge(_TOPIC, "partition_current_offset", _BY_PARTITION, "End of the log (high watermark)."),
    _gauge(_TOPIC, "partition_oldest_offset", _BY_PARTITION, "Start of the log."),
    _gauge(_TOPIC, "partition_leader", _BY_PARTITION, "Node id of the leader; -1 without one."),
    _gauge(_TOPIC, "partition_leader_is_preferred", _BY_PARTITION, "1 if the leader is the first replica."),
    _gauge(_TOPIC, "partition_replicas", _BY_PARTITION, "Replicas."),
    _gauge(_TOPIC, "partition_in_sync_replica", _BY_PARTITION, "Replicas in sync."),
    _gauge(_TOPIC, "partition_under_replicated_partition", _BY_PARTITION, "1 if replicas are not in sync."),
    _gauge(
        "headrace:type=topic",
        "partition_unstable_records",
        _BY_PARTITION,
        "Offsets between the last stable offset and the end of the log: what open transactions hold back from readers "
        "of committed records.",
    ),
    _gauge(_GROUP, "current_offset", _BY_OFFSET, "Committed offset: the next record to read."),
    _gauge(_GROUP, "current_offset_sum", _BY_TOPIC, "Sum of the committed offsets of a topic."),
    _gauge(_GROUP, "lag", _BY_OFFSET, "Offsets between the committed offset and the end of the log."),
    _gauge(_GROUP, "lag_sum", _BY_TOPIC, "Sum of the lags of a topic."),
    _gauge(
        _GROUP, "members", _BY_GROUP, "Members of the group, of any type; absent for groups that are not described."
    ),
    _gauge(
        _OURS,
        "lag_seconds",
        _BY_OFFSET,
        "Waiting time of the oldest unread record: at least this long. Longer by at most one collection interval if "
        "the exporter saw the record arrive.",
    ),
    _gauge(
        _OURS,
        "lost_offsets",
        _BY_OFFSET,
        "Offsets between the committed offset and the start of the log: deleted before the group read them.",
    ),
    _gauge(
        _OURS,
        "partitions_without_offset",
        _BY_GROUP,
        "Partitions that members are assigned and for which nothing is committed; they have no lag.",
    ),
    _gauge(_OURS, "state", ("consumergroup", "type", "state"), "1 for the state that the group is in, else 0."),
    _gauge(_OURS, "static_members", _BY_GROUP, "Members with an instance id (group.instance.id)."),
    _gauge(_OURS, "epoch", _BY_GROUP, "Group epoch (not for classic groups)."),
    _gauge(_OURS, "assignment_epoch", _BY_GROUP, "Epoch of the target assignment (not for classic groups)."),
    _gauge(
        _OURS,
        "members_behind",
        _BY_GROUP,
        "Members whose epoch is not yet that of the target assignment (not for classic groups).",
    ),
    _gauge(
        _OURS,
        "assigned",
        ("consumergroup", "role"),
        "What members have now: role partition for consumers, active, standby and warmup (tasks) for streams groups.",
    ),
    _gauge(
        _OURS,
        "assigned_target",
        ("consumergroup", "role"),
        "What members are to have, by the target assignment (not for classic groups).",
    ),
    _gauge(
        _OURS,
        "assigned_pending",
        _BY_GROUP,
        "Partitions and tasks that a member has still to release or to take over (not for classic groups).",
    ),
    _counter(
        _OURS,
        "rebalances_total",
        _BY_GROUP,
        "Rebalances since the exporter started: rises of the group epoch; in classic groups those that collections "
        "saw, which may be fewer.",
    ),
    _counter(_OURS, "members_joined_total", _BY_GROUP, "Members that collections saw for the first time."),
    _counter(_OURS, "members_left_total", _BY_GROUP, "Members that collections saw no more."),
    _gauge(_EXPORTER, "up", (), "1 if the last collection succeeded."),
    _gauge(_EXPORTER, "collection_seconds", (), "Duration of the last collection, failed or not."),
    _gauge(_EXPORTER, "snapshot_age_seconds", (), "Age of the values on this page; absent before the first."),
    _counter(_EXPORTER, "collections_total", ("outcome",), "Collections by outcome: ok, failed."),
    _gauge(_EXPORTER, "groups_refused", ("code",), "Groups that could not be described, by code of the error."),
    _gauge(_EXPORTER, "groups_left_out", (), "Groups beyond --max-groups."),
    _gauge(_EXPORTER, "partitions_left_out", (), "Partitions beyond --max-partitions."),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ALL}


@dataclass(slots=True, kw_only=True)
class CollectionHealth:
    """Outcomes of collections. Mutable."""

    succeeded: int = 0
    failed: int = 0
    is_up: bool = False
    seconds: float | None = None


def snapshot_families(snapshot: ClusterSnapshot, history: SnapshotHistory, now_ms: int) -> list[Family]:
    """Return the families of a snapshot that was added to `history` at `now_ms`."""
    rows: dict[str, Rows] = {name: [] for name in METRICS}
    for name, value, labels in _values(snapshot, history, now_ms):
        rows[name].append((value, labels))
    return [METRICS[name].family(found) for name, found in rows.items() if found]


def health_families(health: CollectionHealth, age_seconds: float | None) -> list[Family]:
    """Return the families about the exporter itself."""
    prefix = "headrace_exporter_"
    families = [
        METRICS[f"{prefix}up"].family([(health.is_up, {})]),
        METRICS[f"{prefix}collections_total"].family(
            [(health.succeeded, {"outcome": "ok"}), (health.failed, {"outcome": "failed"})]
        ),
    ]
    if health.seconds is not None:
        families.append(METRICS[f"{prefix}collection_seconds"].family([(health.seconds, {})]))
    if age_seconds is not None:
        families.append(METRICS[f"{prefix}snapshot_age_seconds"].family([(age_seconds, {})]))
    return families


Value = tuple[str, float, Mapping[str, str]]


def _values(snapshot: ClusterSnapshot, history: SnapshotHistory, now_ms: int) -> Iterator[Value]:
    yield "kafka_brokers", len(snapshot.brokers), {}
    for node, address in snapshot.brokers.items():
        yield "kafka_broker_info", 1, {"id": str(node), "address": address}
    yield from _partition_values(snapshot)
    for group in snapshot.groups.values():
        yield from _group_values(group, history)
        yield from _offset_values(group, snapshot, history, now_ms)
    for code in sorted(set(snapshot.refused.values())):
        count = sum(1 for refused in snapshot.refused.values() if refused == code)
        yield "headrace_exporter_groups_refused", count, {"code": code}
    yield "headrace_exporter_groups_left_out", snapshot.left_out_groups, {}
    yield "headrace_exporter_partitions_left_out", snapshot.left_out_partitions, {}


def _partition_values(snapshot: ClusterSnapshot) -> Iterator[Value]:
    counts: dict[str, int] = {}
    for topic, _ in snapshot.partitions:
        counts[topic] = counts.get(topic, 0) + 1
    for topic, count in counts.items():
        yield "kafka_topic_partitions", count, {"topic": topic}
    prefix = "kafka_topic_partition_"
    for (topic, number), partition in snapshot.partitions.items():
        labels = {"topic": topic, "partition": str(number)}
        yield f"{prefix}leader", partition.leader, labels
        yield f"{prefix}leader_is_preferred", partition.leader == next(iter(partition.replicas), None), labels
        yield f"{prefix}replicas", len(partition.replicas), labels
        yield f"{prefix}in_sync_replica", len(partition.in_sync), labels
        behind = len(partition.in_sync) < len(partition.replicas)
        yield f"{prefix}under_replicated_partition", behind, labels
        if partition.end is not None and partition.start is not None:
            yield f"{prefix}current_offset", partition.end, labels
            yield f"{prefix}oldest_offset", partition.start, labels
            if partition.stable_end is not None:
                held = max(0, partition.end - partition.stable_end)
                yield "headrace_topic_partition_unstable_records", held, labels


def _group_values(group: GroupSnapshot, history: SnapshotHistory) -> Iterator[Value]:
    prefix = "headrace_consumergroup_"
    labels = {"consumergroup": group.group_id}
    kind = group.group_type.lower()
    states = _STATES.get(kind, ())
    # Brokers spell states in several ways ("NotReady", "NOT_READY"); a state that is new to this version is shown as
    # the broker spells it.
    named = {plain_name(state): state for state in states}
    present = named.get(plain_name(group.state), group.state)
    for state in dict.fromkeys((*states, present)):
        yield f"{prefix}state", state == present, labels | {"type": kind, "state": state}
    if not group.is_described:
        return
    yield "kafka_consumergroup_members", len(group.members), labels
    yield f"{prefix}static_members", sum(member.is_static for member in group.members), labels
    runs_streams = kind == "streams" or isinstance(group.description, StreamsGroupDescription)
    roles = ("active", "standby", "warmup") if runs_streams else ("partition",)
    for role in roles:
        held = sum(1 for member in group.members for each in member.assignment if each[0] == role)
        yield f"{prefix}assigned", held, labels | {"role": role}
    without = group.inputs - group.committed.keys()
    yield f"{prefix}partitions_without_offset", len(without), labels
    if group.epoch is not None and group.assignment_epoch is not None:
        yield f"{prefix}epoch", group.epoch, labels
        yield f"{prefix}assignment_epoch", group.assignment_epoch, labels
        behind = sum(1 for member in group.members if (member.epoch or 0) < group.assignment_epoch)
        yield f"{prefix}members_behind", behind, labels
        for role in roles:
            wanted = sum(1 for member in group.members for each in member.target or () if each[0] == role)
            yield f"{prefix}assigned_target", wanted, labels | {"role": role}
        # A task that moves counts twice: one member has to release it, another one to take it over.
        pending = sum(len(member.assignment ^ (member.target or frozenset())) for member in group.members)
        yield f"{prefix}assigned_pending", pending, labels
    changes = history.groups.get(group.group_id)
    if changes is not None:
        yield f"{prefix}rebalances_total", changes.rebalances, labels
        yield f"{prefix}members_joined_total", changes.joined, labels
        yield f"{prefix}members_left_total", changes.left, labels


def _offset_values(
    group: GroupSnapshot, snapshot: ClusterSnapshot, history: SnapshotHistory, now_ms: int
) -> Iterator[Value]:
    waiting_ms = history.waiting_ms(group.committed, now_ms)
    offsets: dict[str, int] = {}
    lags: dict[str, int] = {}
    for key, committed in sorted(group.committed.items()):
        topic, number = key
        labels = {"consumergroup": group.group_id, "topic": topic, "partition": str(number)}
        yield "kafka_consumergroup_current_offset", committed, labels
        offsets[topic] = offsets.get(topic, 0) + committed
        partition = snapshot.partitions.get(key)
        # A topic that was deleted keeps its committed offsets for a while; there is no lag without a log.
        if partition is None or partition.end is None or partition.start is None:
            continue
        lag = max(0, partition.end - committed)
        lags[topic] = lags.get(topic, 0) + lag
        yield "kafka_consumergroup_lag", lag, labels
        yield "headrace_consumergroup_lost_offsets", max(0, partition.start - committed), labels
        if key in waiting_ms:
            yield "headrace_consumergroup_lag_seconds", waiting_ms[key] / 1000, labels
    yield from _sums("kafka_consumergroup_current_offset_sum", group.group_id, offsets.items())
    yield from _sums("kafka_consumergroup_lag_sum", group.group_id, lags.items())


def _sums(name: str, group_id: str, totals: Iterable[tuple[str, int]]) -> Iterator[Value]:
    for topic, total in totals:
        yield name, total, {"consumergroup": group_id, "topic": topic}
