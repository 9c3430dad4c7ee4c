"""Several instances as one application: sums, the slowest percentiles, the watermark furthest behind, and gaps."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tests.cli.exporter.test_snapshot_families import cluster, streams
from tests.cli.ui.running_applications import document_of

from headrace.cli.ui.application_document import application_document
from headrace.cli.ui.instance_client import InstanceAnswer, checked_document
from headrace.cli.ui.offset_series import OffsetSeries
from headrace.cli.ui.paging import Paging


def merged(*documents: dict[str, Any] | str, **query: str) -> dict[str, Any]:
    answers = [
        InstanceAnswer(endpoint=("127.0.0.1", number), problem=each)
        if isinstance(each, str)
        else InstanceAnswer(endpoint=("127.0.0.1", number), document=checked_document(each))
        for number, each in enumerate(documents)
    ]
    group = streams()
    return application_document(group, answers, cluster(group), OffsetSeries(), Paging.from_query(query, "tasks."))


def second() -> dict[str, Any]:
    """An instance with two other tasks, slower and further behind."""
    document = deepcopy(document_of(host="worker-2"))
    part = document["subtopologies"][0]
    part["batch_ms"] = {"count": 9, "p50": 30, "p99": 40, "max": 99}
    for task in part["tasks"]:
        task["partition"] += 2
        task["watermarks_ms"] = {"by-origin": 1_000 + task["partition"]}
    return document


def test_two_instances_are_one_application() -> None:
    found = merged(document_of(), second(), "it did not answer in time")
    (part,) = found["subtopologies"]
    assert (part["tasks"], part["lag"], part["records_per_second"], part["state_keys"]) == (4, 34, 501.0, 120)
    assert (part["late_rows"], part["skipped"], part["dead_letters"]) == (4, 4, 12)
    # Of each the worst: percentiles do not add up.
    assert part["batch_ms"] == {"count": 40, "p50": 30, "p99": 48, "max": 99}
    assert part["watermark_ms"] == 1_002
    assert found["records_per_second"] == 501.0
    assert [each["problem"] for each in found["instances"]] == ["", "", "it did not answer in time"]
    assert [each.get("tasks") for each in found["instances"]] == [2, 2, None]
    assert found["instances"][0]["opening"] == [{"task": "0_7", "partition": 7, "restored": 10, "remaining": 90}]
    assert set(found["topics"]) == {"flights", "delays-by-origin"}  # the table is no topic


def test_tasks_are_sorted_and_name_their_instance() -> None:
    found = merged(document_of(), second())["tasks"]
    assert [(row["partition"], row["instance"], row["slot"]) for row in found["rows"]] == [
        (0, "127.0.0.1:0", 0),
        (1, "127.0.0.1:0", 1),
        (2, "127.0.0.1:1", 0),
        (3, "127.0.0.1:1", 1),
    ]
    by_watermark = merged(document_of(), second(), **{"tasks.sort": "watermark"})["tasks"]
    assert [row["partition"] for row in by_watermark["rows"]] == [2, 3, 0, 1]
    assert [row["partition"] for row in merged(second(), **{"tasks.q": "0_3"})["tasks"]["rows"]] == [3]


def test_without_an_answer_there_are_no_figures() -> None:
    found = merged("it is not reached")
    assert (found["subtopologies"], found["tasks"]["rows"], found["topics"]) == ([], [], {})
    assert found["silent_members"] == found["members"]
