"""States in words, and the target assignment against the current one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cli.exporter.test_snapshot_families import classic, cluster, streams

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import encode_assignment, encode_subscription
from headrace.assignors.kafka_assignors import StickyAssignor
from headrace.cli.exporter.cluster_snapshot import GroupSnapshot
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.cli.readiness import Obstacle
from headrace.cli.ui.group_documents import group_document, groups_document, state_reason
from headrace.cli.ui.offset_series import OffsetSeries
from headrace.cli.ui.paging import Paging
from headrace.client.admin_groups import ConsumerGroupDescription, ConsumerMemberDescription


def group_of(state: str, **fields: Any) -> GroupSnapshot:
    return GroupSnapshot(group_id="g", group_type=fields.pop("group_type", "classic"), state=state, **fields)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (group_of("Stable"), ""),
        (group_of("Empty"), "no members"),
        (group_of("PreparingRebalance"), "joined again"),
        (group_of("CompletingRebalance"), "assignment of the leader"),
        (group_of("Assigning", epoch=9, assignment_epoch=8), "epoch 9"),
        (streams(), "1 of 2 members"),
        (group_of("NotReady", group_type="streams"), "waits for its topics"),
        (group_of("Stable", group_type="share", is_described=False), "not shown"),
    ],
)
def test_states_have_words(group: GroupSnapshot, words: str) -> None:
    found = state_reason(group, ())
    assert words in found
    assert bool(words) == bool(found)


def test_the_reason_of_a_group_that_is_not_ready_is_its_first_obstacle() -> None:
    why = (Obstacle(status="MISSING_SOURCE_TOPICS", why="topic whether is missing", do="create it"),)
    assert state_reason(group_of("NotReady", group_type="streams"), why) == "topic whether is missing"


def document(group: GroupSnapshot, **query: str) -> dict[str, Any]:
    snapshot, series, history = cluster(group), OffsetSeries(), SnapshotHistory()
    for now_ms in (0, 1000):
        series.add(snapshot, now_ms)
        history.add(snapshot, now_ms)
    return group_document(
        snapshot,
        series,
        history,
        {},
        group,
        Paging.from_query(query, "members."),
        Paging.from_query(query, "partitions."),
        now_ms=1000,
    )


def test_members_show_what_they_have_and_what_comes_and_goes() -> None:
    found = document(streams())
    assert (found["epoch"], found["assignment_epoch"], found["members_behind"], found["pending"]) == (8, 8, 1, 6)
    first, second = found["members"]["rows"]
    assert (first["is_behind"], second["is_behind"]) == (True, False)
    assert first["tasks"] == [
        {"role": "active", "of": "0", "kept": [[0, 0]], "coming": [[2, 2]], "leaving": [[1, 1]], "count": 2},
        {"role": "standby", "of": "0", "kept": [], "coming": [], "leaving": [[2, 2]], "count": 1},
    ]
    assert document(streams(), **{"members.q": "b"})["members"]["count"] == 1


def test_lag_of_a_group_and_its_partitions() -> None:
    found = document(streams())
    assert (found["lag"], found["rate"], found["lag_series"]) == (60, 0.0, [60, 60])
    assert found["waiting_ms"] == 1000
    (partition,) = found["partitions"]["rows"]
    assert (partition["committed"], partition["end"], partition["lag"], partition["rate_series"]) == (
        40,
        100,
        60,
        [0.0],
    )


def test_the_list_counts_types_and_states_of_all_groups() -> None:
    snapshot, series, history = cluster(streams(), group_of("Empty")), OffsetSeries(), SnapshotHistory()
    series.add(snapshot, 0)
    history.add(snapshot, 0)
    found = groups_document(snapshot, series, history, {}, Paging(), now_ms=0, state="EMPTY")
    assert [row["group_id"] for row in found["rows"]] == ["g"]
    assert found["types"] == {"classic": 1, "streams": 1}
    assert found["states"] == {"Empty": 1, "Reconciling": 1}
    assert found["rows"][0]["lag"] is None  # nothing was committed


def test_members_of_a_classic_group_show_their_user_data() -> None:
    owned = StickyAssignor()
    owned.on_assignment(Assignment(partitions=(("orders", 0),)), 7)
    sent = Subscription(topics=("orders",), user_data=owned.subscription_user_data(("orders",)))
    described = ConsumerGroupDescription(
        group_id="g",
        group_type="classic",
        state="Stable",
        assignor="sticky",
        members=(
            ConsumerMemberDescription(
                member_id="m1",
                instance_id=None,
                client_id="app",
                client_host="/10.0.0.1",
                assignment=(("orders", 0),),
                subscription_bytes=encode_subscription(sent),
                assignment_bytes=encode_assignment(Assignment(partitions=(("orders", 0),))),
            ),
        ),
    )
    (row,) = document(replace(classic("m1"), description=described))["members"]["rows"]
    assert row["user_data"] == [{"role": "subscription", "text": '{"generation":7,"owned":{"orders":[0]}}'}]
    assert document(streams())["members"]["rows"][0]["user_data"] == []
