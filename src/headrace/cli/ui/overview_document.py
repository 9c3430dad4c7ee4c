"""Document of the overview: brokers, counts, and a list of the items that need attention. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot
from headrace.cli.readiness import Obstacle
from headrace.cli.ui.group_documents import state_reason
from headrace.cli.ui.offset_series import OffsetSeries
from headrace.client.admin_groups import plain_name

__all__ = ["overview_document"]

MOST_ITEMS = 50
# A group in one of these states processes nothing, or not with all members.
_UNSETTLED = frozenset({"notready", "assigning", "reconciling", "preparingrebalance", "completingrebalance"})


def overview_document(
    snapshot: ClusterSnapshot, series: OffsetSeries, obstacles: Mapping[str, Sequence[Obstacle]]
) -> dict[str, Any]:
    """Return the overview.

    Args:
        snapshot: The cluster.
        series: Series of all groups and topics.
        obstacles: Reasons of streams groups without tasks.
    """
    leads: dict[int, int] = {}
    hosts: dict[int, int] = {}
    lacking: dict[int, int] = {}
    offline = under_replicated = partitions = 0
    attention: list[dict[str, Any]] = []
    for name, topic in sorted(snapshot.topics.items()):
        down = behind = 0
        for number, leader in topic.partitions.items():
            partitions += 1
            leads[leader] = leads.get(leader, 0) + 1
            down += leader < 0
            missing = set(topic.replicas.get(number, ())) - set(topic.in_sync.get(number, ()))
            behind += bool(missing)
            for node in topic.replicas.get(number, ()):
                hosts[node] = hosts.get(node, 0) + 1
            for node in missing:
                lacking[node] = lacking.get(node, 0) + 1
        offline += down
        under_replicated += behind
        if down:
            attention.append(
                _item("error", "topic", name, f"{down} of {len(topic.partitions)} partitions have no leader.")
            )
        elif behind:
            attention.append(_item("warning", "topic", name, f"{behind} partitions lack replicas in sync."))
    for group in snapshot.groups.values():
        own = obstacles.get(group.group_id, ())
        state = plain_name(group.state)
        if state in _UNSETTLED or own:
            level = "error" if state == "notready" else "warning" if own else "info"
            attention.append(_item(level, "group", group.group_id, state_reason(group, own)))
    attention += [
        _item("warning", "group", name, f"The cluster refused the description of this group ({code}).")
        for name, code in sorted(snapshot.refused.items())
    ]
    attention.sort(key=lambda item: ("error", "warning", "info").index(item["level"]))
    # A broker that answers no metadata request is known by the replicas that it should have.
    nodes = sorted(snapshot.brokers.keys() | hosts.keys())
    lag = series.cluster.lag.values
    return {
        "cluster_id": snapshot.cluster_id,
        "brokers": [
            {
                "node": node,
                "address": snapshot.brokers.get(node, ""),
                "is_online": node in snapshot.brokers,
                "is_controller": node == snapshot.controller,
                "leads": leads.get(node, 0),
                "replicas": hosts.get(node, 0),
                "out_of_sync": lacking.get(node, 0),
            }
            for node in nodes
        ],
        "topics": len(snapshot.topics),
        "partitions": partitions,
        "offline": offline,
        "under_replicated": under_replicated,
        "groups": len(snapshot.groups),
        "members": sum(len(group.members) for group in snapshot.groups.values()),
        "types": {
            kind: sum(1 for group in snapshot.groups.values() if group.group_type == kind)
            for kind in sorted({group.group_type for group in snapshot.groups.values()})
        },
        "lag": series.cluster.lag.last(),
        "rate": series.rate(series.cluster.done),
        "ages_ms": [series.times_ms[-1] - time_ms for time_ms in series.times_ms[-len(lag) :]] if lag else [],
        "lag_series": list(lag),
        "rate_series": [round(rate, 1) for rate in series.rates(series.cluster.done)],
        "attention": attention[:MOST_ITEMS],
        "attention_count": len(attention),
        "left_out_groups": snapshot.left_out_groups,
        "left_out_partitions": snapshot.left_out_partitions,
    }


def _item(level: str, kind: str, name: str, text: str) -> dict[str, Any]:
    return {"level": level, "kind": kind, "name": name, "text": text}
