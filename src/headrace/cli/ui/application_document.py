"""The document about the internals of one application, from those of its instances. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot
from headrace.cli.ui.instance_client import MOST_INSTANCES, Endpoint, InstanceAnswer
from headrace.cli.ui.offset_series import OffsetSeries
from headrace.cli.ui.paging import Paging, select_page
from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["application_document", "endpoints_of"]

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    subtopology: str
    task: Document
    instance: str

    @property
    def watermark_ms(self) -> int | None:
        """The watermark that is furthest behind; None without one."""
        return _least(self.task["watermarks_ms"].values())


def endpoints_of(group: GroupSnapshot) -> dict[Endpoint, str]:
    """Return the endpoints that the members of a group announced, each with the client id of its member."""
    if not isinstance(group.description, StreamsGroupDescription):
        return {}
    return {
        member.user_endpoint: member.client_id
        for member in group.description.members
        if member.user_endpoint is not None
    }


def application_document(
    group: GroupSnapshot,
    answers: Sequence[InstanceAnswer],
    snapshot: ClusterSnapshot,
    series: OffsetSeries,
    paging: Paging,
) -> dict[str, Any]:
    """Return the document of one application.

    Args:
        group: Its group.
        answers: The documents of its instances.
        snapshot: The cluster.
        series: Series of all topics.
        paging: Page of the tasks.

    Raises:
        ConfigError: `bad-value` for an unknown column.
    """
    clients = endpoints_of(group)
    documents = [(_name(each, clients), each.document) for each in answers if each.document is not None]
    tasks = [
        _Task(subtopology=part["id"], task=task, instance=name)
        for name, document in documents
        for part in document["subtopologies"]
        for task in part["tasks"]
    ]
    tasks.sort(key=lambda each: (each.subtopology, each.task["partition"]))
    members = len(group.members)
    subtopologies = _subtopologies([document for _, document in documents], tasks)
    return {
        "group_id": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "members": members,
        "silent_members": max(0, members - len(clients)),
        "left_out": max(0, len(clients) - MOST_INSTANCES),
        "instances": [_instance(each, clients) for each in answers],
        "guarantee": next((document["guarantee"] for _, document in documents), ""),
        "lag": sum(part["lag"] for part in subtopologies),
        "records_per_second": sum(
            part["records_per_second"] for part in subtopologies if any(s["kind"] == "topic" for s in part["sources"])
        ),
        "state_keys": sum(part["state_keys"] for part in subtopologies),
        "state_bytes": sum(part["state_bytes"] for part in subtopologies),
        "late_rows": sum(part["late_rows"] for part in subtopologies),
        "skipped": sum(part["skipped"] for part in subtopologies),
        "dead_letters": sum(part["dead_letters"] for part in subtopologies),
        "subtopologies": subtopologies,
        "topics": _topics(subtopologies, snapshot, series),
        "tasks": _page_of_tasks(tasks, paging),
    }


def _name(answer: InstanceAnswer, clients: Mapping[Endpoint, str]) -> str:
    host, port = answer.endpoint
    # Instances of one application have the same client id, unless it is set.
    return f"{clients.get(answer.endpoint, '')} {host}:{port}".strip()


def _instance(answer: InstanceAnswer, clients: Mapping[Endpoint, str]) -> dict[str, Any]:
    document, (host, port) = answer.document, answer.endpoint
    about: dict[str, Any] = {
        "endpoint": f"{host}:{port}",
        "client_id": clients.get(answer.endpoint, ""),
        "problem": answer.problem,
    }
    if document is None:
        return about
    parts = document["subtopologies"]
    return about | {
        **{name: document[name] for name in ("state", "reasons", "version", "member_id", "member_epoch")},
        **{name: document[name] for name in ("host", "pid", "state_disk_bytes", "memberships_lost")},
        "up_ms": max(0, document["time_ms"] - document["started_ms"]),
        "tasks": sum(len(part["tasks"]) for part in parts),
        "standby": len(document["standby"]),
        "opening": [
            {"task": f"{part['id']}_{each['partition']}", **each} for part in parts for each in part["opening"]
        ],
        "records_per_second": sum(part["records_per_second"] for part in parts),
    }


def _subtopologies(documents: Sequence[Document], tasks: Sequence[_Task]) -> list[dict[str, Any]]:
    found: dict[str, list[Document]] = {}
    for document in documents:
        for part in document["subtopologies"]:
            found.setdefault(part["id"], []).append(part)
    return [
        _subtopology(name, parts, [each for each in tasks if each.subtopology == name])
        for name, parts in sorted(found.items())
    ]


def _subtopology(name: str, parts: Sequence[Document], tasks: Sequence[_Task]) -> dict[str, Any]:
    # Instances of two versions may run side by side during a deployment: the newest topology is not known, the first
    # one is shown.
    first = parts[0]
    totals = {
        key: sum(part[key] for part in parts)
        for key in ("records", "records_per_second", "output_records", "lag", "batches", "failed_batches")
    }
    return {
        "id": name,
        **{key: first[key] for key in ("sources", "operators", "sinks")},
        **totals,
        "tasks": len(tasks),
        "opening": sum(len(part["opening"]) for part in parts),
        # Percentiles of several instances cannot be added: those of the slowest instance.
        "batch_ms": {key: _most(part["batch_ms"][key] for part in parts) for key in ("count", "p50", "p99", "max")},
        "stages_ms": [
            {
                "stage": stage,
                **{key: _most(part["stages_ms"].get(stage, {}).get(key) for part in parts) for key in ("p50", "p99")},
            }
            for stage in sorted({stage for part in parts for stage in part["stages_ms"]})
        ],
        "watermark_ms": _least(each.watermark_ms for each in tasks),
        **{
            key: sum(each.task[key] for each in tasks)
            for key in ("state_keys", "state_bytes", "late_rows", "skipped", "dead_letters")
        },
    }


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _topics(parts: Sequence[Document], snapshot: ClusterSnapshot, series: OffsetSeries) -> dict[str, Any]:
    names = {topic for part in parts for source in part["sources"] for topic in source["topics"]}
    names |= {sink["name"] for part in parts for sink in part["sinks"] if sink["kind"] in ("topic", "repartition")}
    return {
        name: {
            "partitions": len(snapshot.topics[name].partitions) if name in snapshot.topics else None,
            "rate": series.rate(series.topics[name]) if name in series.topics else None,
        }
        for name in sorted(names)
    }


def _page_of_tasks(tasks: Sequence[_Task], paging: Paging) -> dict[str, Any]:
    def document(row: _Task) -> dict[str, Any]:
        keys = ("partition", "slot", "place", "records", "lag", "state_keys", "state_bytes", "late_rows", "skipped")
        return {
            "subtopology": row.subtopology,
            "instance": row.instance,
            **{key: row.task[key] for key in keys},
            "dead_letters": row.task["dead_letters"],
            "watermark_ms": row.watermark_ms,
        }

    return select_page(
        tasks,
        paging,
        matches=lambda row: f"{row.subtopology}_{row.task['partition']} {row.instance} {row.task['place']}",
        columns={
            "task": lambda row: (row.subtopology, row.task["partition"]),
            "instance": lambda row: (row.instance, row.task["place"], row.task["slot"]),
            "lag": lambda row: row.task["lag"],
            "state": lambda row: row.task["state_bytes"],
            # Without a watermark at the end of the ascending order.
            "watermark": lambda row: (row.watermark_ms is None, row.watermark_ms or 0),
            "late": lambda row: row.task["late_rows"],
            "dead": lambda row: row.task["dead_letters"],
        },
        document=document,
    )
