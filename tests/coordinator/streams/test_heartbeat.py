"""The rules of a streams heartbeat, one behaviour a test. The request that a member sends is in the test's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.coordinator.coordinator_context import (
    STATEFUL,
    STATELESS,
    CoordinatorContext,
    subtopology,
    topic_info,
    topology,
)

from headrace.coordinator.request_context import CoordinatorError
from headrace.protocol.messages import streams_group_heartbeat_request as m

DELAYED = {"group.streams.initial.rebalance.delay.ms": 3_000, "group.streams.assignment.interval.ms": 1_000}
INTERVAL = {"group.streams.assignment.interval.ms": 1_000}


def refused(request: Callable[[], object]) -> str:
    """The error's name."""
    with pytest.raises(CoordinatorError) as caught:
        request()
    assert len(caught.value.message.split()) > 2, "a sentence for the client's log"
    return caught.value.code.name


def two_members() -> CoordinatorContext:
    """m1 has 0 and 1, m2 has 2 and 3, both at epoch 3."""
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    assert ctx.heartbeat("m2", 3).active == {"0": (2, 3)}
    assert ctx.state() == "Stable"
    return ctx


# --- 1 validation ---

INVALID: list[tuple[str, dict[str, Any]]] = [
    ("blank member", {"member_id": " "}),
    ("blank group", {"group_id": " "}),
    ("blank rack", {"rack_id": ""}),
    ("join without timeout", {"rebalance_timeout_ms": -1}),
    ("join without tasks", {"active": None}),
    ("join with tasks", {"active": {"0": (1,)}}),
    ("join without topology", {"topology": None}),
    ("epoch below -2", {"epoch": -3}),
    ("some lists only", {"epoch": 1, "topology": None, "active": None, "standby": {}}),
    ("topology later", {"epoch": 1}),
    ("blank instance", {"instance_id": " "}),
    ("join with warm-up tasks", {"warmup": {"0": (1,)}}),
    ("static leave without instance", {"epoch": -2, "topology": None}),
    ("epoch below -2 with instance", {"epoch": -3, "instance_id": "i"}),
    ("client tag twice", {"client_tags": (("zone", "a"), ("rack", "r"), ("zone", "a"))}),
    ("regular expression", {"topology": topology(subtopology(regex=("in.*",)))}),
]


@pytest.mark.parametrize(("changed"), [change for _, change in INVALID], ids=[name for name, _ in INVALID])
def test_an_invalid_request_changes_nothing(changed: dict[str, Any]) -> None:
    ctx = CoordinatorContext()
    given: dict[str, Any] = {"member_id": "m1", "epoch": 0, "active": {}, "topology": STATELESS}
    request = {**given, "rebalance_timeout_ms": 1_500, **changed}
    assert (
        refused(lambda: ctx.heartbeat(request.pop("member_id"), request.pop("epoch"), **request)) == "invalid_request"
    )
    assert ctx.log == []


def test_a_changelog_with_a_partition_count_is_an_invalid_topology() -> None:
    ctx = CoordinatorContext()
    wrong = subtopology()
    changelog = subtopology(repartitions=(("cl", 3),)).repartition_source_topics
    object.__setattr__(wrong, "state_changelog_topics", changelog)
    assert refused(lambda: ctx.join("m1", topology=topology(wrong))) == "streams_invalid_topology"


def replaced_changelog(changelog: m.TopicInfo) -> m.Subtopology:
    return replace(subtopology(), state_changelog_topics=(changelog,))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (topology(epoch=-1), "epoch is -1"),
        (topology(subtopology("a"), subtopology("b"), subtopology("a")), "subtopology a is there twice"),
        (
            topology(replaced_changelog(topic_info("cl", 0, (("a", "1"), ("a", "2"))))),
            "config of topic cl a is there twice",
        ),
        (topology(subtopology(changelogs=("cl", "cl"))), "changelog topic of subtopology 0 cl is there twice"),
        (
            topology(subtopology(sinks=("r",), repartitions=("r", "r"))),
            "repartition source topic of subtopology 0 r is there twice",
        ),
    ],
)
def test_a_topology_that_kafka_stumbles_over_is_invalid(given: m.Topology, message: str) -> None:
    ctx = CoordinatorContext()
    with pytest.raises(CoordinatorError, match=re.escape(message)) as caught:
        ctx.join("m1", topology=given)
    assert caught.value.code.name == "streams_invalid_topology"


def test_a_subtopology_named_without_tasks_must_exist() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    assert ctx.heartbeat("m1", 2, active={"0": ()}).active == {"0": (0, 1, 2, 3)}
    assert refused(lambda: ctx.heartbeat("m1", 2, active={"9": ()})) == "invalid_request"


def test_the_first_broken_rule_answers() -> None:
    """In Kafka's order; each request breaks the rules behind as well."""
    ctx = CoordinatorContext()
    regex = topology(subtopology(regex=("in.*",)))
    counted = subtopology()
    object.__setattr__(counted, "state_changelog_topics", (topic_info("cl", 3),))
    given: dict[str, Any] = {"topology": regex, "group_id": "", "instance_id": " ", "rack_id": "", "standby": None}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("Regular expressions", {"topology": topology(counted)}),
        ("MemberId", {"member_id": "m1"}),
        ("GroupId", {"group_id": "g"}),
        ("InstanceId", {"instance_id": None}),
        ("RackId", {"rack_id": None}),
        ("RebalanceTimeoutMs", {"rebalance_timeout_ms": 5}),
        ("ActiveTasks", {"active": {}, "standby": {"0": (1,)}}),
        ("StandbyTasks", {"standby": {}, "warmup": {"0": (1,)}}),
        ("WarmupTasks", {"warmup": {}}),
        ("Changelog topic cl", {"topology": None}),
        ("Topology must be non-null", {"epoch": -2, "active": None, "standby": {}, "warmup": None}),
        ("InstanceId can't be null", {"epoch": -3, "instance_id": "i"}),
        ("MemberEpoch is -3", {"epoch": 1, "topology": STATELESS}),
        ("If one task-type", {"standby": None}),
        ("Topology can only", {}),
    ]
    request = {"member_id": " ", "epoch": 0, **given}
    for message, next_change in steps:
        asked = dict(request)
        with pytest.raises(CoordinatorError, match=re.escape(message)):
            ctx.heartbeat(asked.pop("member_id"), asked.pop("epoch"), **asked)
        request.update(next_change)


# --- 2 members, epochs, size ---


def test_requests_for_what_does_not_exist() -> None:
    ctx = CoordinatorContext()
    assert refused(lambda: ctx.heartbeat("m1", 1)) == "group_id_not_found"
    assert refused(lambda: ctx.leave("m1")) == "group_id_not_found"
    ctx.join("m1")
    assert refused(lambda: ctx.heartbeat("m2", 1)) == "unknown_member_id"
    assert refused(lambda: ctx.leave("m2")) == "unknown_member_id"


def test_epochs_that_are_not_current_are_fenced() -> None:
    ctx = two_members()
    assert refused(lambda: ctx.heartbeat("m1", 4)) == "fenced_member_epoch"
    assert refused(lambda: ctx.heartbeat("m1", 1, active={"0": (0,)})) == "fenced_member_epoch"
    assert refused(lambda: ctx.heartbeat("m1", 2)) == "fenced_member_epoch", "the lists are missing"
    assert refused(lambda: ctx.heartbeat("m1", 2, active={"0": (0, 2)})) == "fenced_member_epoch", "2 is not its own"


def test_a_lost_reply_is_forgiven_and_its_tasks_are_told_again() -> None:
    ctx = two_members()
    outcome = ctx.heartbeat("m2", 3, active={})
    assert (outcome.active, outcome.records) == ({"0": (2, 3)}, ())
    outcome = ctx.heartbeat("m1", 2, active={"0": (0,)})
    assert (outcome.epoch, outcome.active, outcome.records) == (3, {"0": (0, 1)}, ())


def test_a_lost_demand_to_revoke_is_told_again() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    assert ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)}).active == {"0": (0, 1)}
    assert ctx.heartbeat("m1", 2, active={"0": (0, 1, 2, 3)}).active == {"0": (0, 1)}
    assert ctx.heartbeat("m2", 3).active is None


def test_joining_again_with_the_same_id_keeps_epoch_and_tasks() -> None:
    ctx = two_members()
    outcome = ctx.join("m1")
    assert (outcome.epoch, outcome.active, outcome.records) == (3, {"0": (0, 1)}, ())
    assert ctx.heartbeat("m2", 3).records == ()


def test_joining_again_while_revoking_completes_the_revocation() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    assert (ctx.join("m1").epoch, ctx.heartbeat("m2", 3).active) == (3, {"0": (2, 3)})


def test_a_full_group_refuses_a_new_member_but_not_one_it_knows() -> None:
    ctx = CoordinatorContext(settings={"group.streams.max.size": 1})
    ctx.join("m1")
    assert refused(lambda: ctx.join("m2")) == "group_max_size_reached"
    assert ctx.join("m1").epoch == 2


# --- 3 and 6 what bumps the group epoch ---


@pytest.mark.parametrize(
    "given",
    [
        {"rack_id": "r"},
        {"process_id": "q"},
        {"rebalance_timeout_ms": 9},
        {"client_tags": (("zone", "a"),)},
        {"endpoint": ("h", 1)},
        {"host": "/10.0.0.1"},
    ],
)
def test_a_changed_member_is_a_new_group_epoch(given: dict[str, Any]) -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    outcome = ctx.heartbeat("m1", 2, **given)
    assert outcome.record_names[:2] == ["MemberMetadata", "Metadata"]
    assert outcome.epoch == 3


def test_a_steady_heartbeat_writes_nothing() -> None:
    ctx = two_members()
    for _ in range(3):
        ctx.sleep(5_000)
        assert ctx.heartbeat("m1", 3).records == ()
        assert ctx.heartbeat("m2", 3, active={"0": (2, 3)}).records == ()


def test_another_number_of_standbys_is_a_new_group_epoch() -> None:
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2})
    ctx.join("m1", topology=STATEFUL)
    ctx.join("m2", topology=STATEFUL)
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0,)})
    ctx.heartbeat("m2", 3)
    records = ctx.set_group_settings({"streams.num.standby.replicas": "1"})
    assert [type(record.key).__name__ for record in records] == [
        "StreamsGroupMetadataKey",
        *["StreamsGroupTargetAssignmentMemberKey"] * 2,
        "StreamsGroupTargetAssignmentMetadataKey",
    ]
    assert ctx.heartbeat("m1", 3).standby == {"0": (1,)}
    assert ctx.heartbeat("m2", 3).standby == {"0": (0,)}


# --- 4 topology ---


def test_another_topology_is_refused_and_an_older_one_is_stale() -> None:
    ctx = CoordinatorContext(topics={"in": 4, "cl": 4})
    ctx.join("m1", topology=topology(epoch=3))
    for other in (STATEFUL, topology(epoch=4)):
        changed = topology(*other.subtopologies, epoch=max(3, other.epoch))
        assert refused(partial(ctx.join, "m2", topology=changed)) == "invalid_request"
    outcome = ctx.join("m2", topology=STATEFUL)
    assert (outcome.statuses, outcome.active) == ([0], {})
    assert ctx.join("m3", topology=topology(epoch=3)).statuses == []


def test_member_with_an_older_topology_gets_no_tasks() -> None:
    ctx = CoordinatorContext(topics={"in": 2})
    ctx.join("m1", topology=topology(epoch=3))
    ctx.join("m2", topology=topology(epoch=2))
    assert ctx.heartbeat("m1", 2).active is None, "nothing moves"
    ctx.leave("m1")
    ctx.sleep(0)
    assert ctx.heartbeat("m2", 3).statuses == [0]
    assert ctx.state() == "Stable"
    outcome = ctx.join("m2", topology=topology(epoch=3))
    assert (outcome.statuses, outcome.active) == ([], {"0": (0, 1)})


def test_the_order_of_subtopologies_is_recorded_but_does_not_matter() -> None:
    ctx = CoordinatorContext()
    second, first = subtopology("b"), subtopology("a")
    joined = ctx.join("m1", topology=topology(second, first))
    assert joined.record_names[1] == "Topology"
    recorded: Any = joined.records[1].value
    assert [each.subtopology_id for each in recorded.subtopologies] == ["b", "a"]
    assert ctx.join("m2", topology=topology(first, second)).statuses == []


# --- 5 topics: not ready, and ready again by itself ---


def test_missing_source_topics_appear_later() -> None:
    ctx = CoordinatorContext(topics={})
    outcome = ctx.join("m1")
    assert (outcome.statuses, outcome.active, outcome.topics_to_create, ctx.state()) == ([1], {}, (), "NotReady")
    assert "Source topics in are missing." in outcome.response.status[0].status_detail
    records = ctx.set_topics({"in": 2})
    assert [type(record.key).__name__ for record in records] == [
        "StreamsGroupMetadataKey",
        "StreamsGroupTargetAssignmentMemberKey",
        "StreamsGroupTargetAssignmentMetadataKey",
    ]
    assert ctx.heartbeat("m1", 2).active == {"0": (0, 1)}


def test_internal_topics_are_asked_for_until_they_exist() -> None:
    ctx = CoordinatorContext(topics={"in": 3})
    joined = ctx.join("m1", topology=STATEFUL)
    again = ctx.heartbeat("m1", 2)
    for outcome in (joined, again):
        assert outcome.statuses == [3]
        assert [(topic.name, topic.partitions, topic.replication_factor) for topic in outcome.topics_to_create] == [
            ("cl", 3, -1)
        ]
    ctx.set_topics({"in": 3, "cl": 3})
    assert ctx.heartbeat("m1", 2).active == {"0": (0, 1, 2)}


def test_a_topic_that_goes_takes_the_tasks_and_its_return_brings_them_back() -> None:
    ctx = two_members()
    ctx.set_topics({})
    assert ctx.state() == "NotReady"
    assert ctx.heartbeat("m1", 3).active == {}
    ctx.set_topics({"in": 4})
    ctx.heartbeat("m1", 3, active={})
    ctx.heartbeat("m2", 3, active={})
    for member in ("m1", "m2"):
        ctx.heartbeat(member, 5)
    has = {each.member_id: each.assignment.active_tasks for each in ctx.describe().members}
    assert {member: tasks[0].partitions for member, tasks in has.items()} == {"m1": (0, 2), "m2": (1, 3)}
    assert ctx.state() == "Stable"


def test_smaller_topic_does_not_fail_a_member_with_old_tasks() -> None:
    ctx = two_members()
    ctx.set_topics({"in": 1}, renewed=["in"])
    assert ctx.heartbeat("m2", 3, active={"0": (2, 3)}).active == {}
    assert refused(lambda: ctx.heartbeat("m2", 3, active={"0": (1,)})) == "invalid_request"
    assert refused(lambda: ctx.heartbeat("m2", 3, active={"9": (0,)})) == "invalid_request"


# --- 7 when the target is computed ---


def test_the_initial_delay_ends_by_its_timer() -> None:
    ctx = CoordinatorContext(settings=DELAYED)
    assert (ctx.join("m1").statuses, ctx.state()) == ([5], "Assigning")
    ctx.sleep(1_000)
    assert ctx.join("m2").statuses == [5]
    ctx.sleep(1_999)
    assert ctx.heartbeat("m1", 1).active is None
    ctx.sleep(1)
    assert ctx.describe().assignment_epoch == 3
    assert (ctx.heartbeat("m1", 1).active, ctx.heartbeat("m2", 1).active) == ({"0": (0, 2)}, {"0": (1, 3)})
    assert ctx.state() == "Stable"


def test_the_initial_delay_of_a_group_that_everybody_left() -> None:
    ctx = CoordinatorContext(settings=DELAYED)
    ctx.join("m1")
    ctx.leave("m1")
    assert ctx.sleep(3_000) == []
    assert ctx.join("m1").statuses == [5]
    ctx.sleep(3_000)
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1, 2, 3)}


def test_the_assignment_interval_ends_by_its_timer() -> None:
    ctx = CoordinatorContext(settings=INTERVAL)
    ctx.join("m1")
    ctx.sleep(400)
    outcome = ctx.join("m2")
    assert (outcome.statuses, outcome.epoch, ctx.state()) == ([5], 2, "Assigning")
    assert ctx.heartbeat("m1", 2).active is None
    ctx.sleep(599)
    assert ctx.state() == "Assigning"
    ctx.sleep(1)
    assert ctx.state() == "Reconciling"


def test_a_heartbeat_after_the_interval_computes_the_target_itself() -> None:
    ctx = CoordinatorContext(settings=INTERVAL)
    ctx.join("m1")
    ctx.sleep(1_000)
    outcome = ctx.join("m2")
    assert (outcome.statuses, outcome.epoch) == ([], 3)
    assert "TargetAssignmentMetadata" in outcome.record_names


def test_a_clock_that_went_back_does_not_lock_the_group() -> None:
    ctx = CoordinatorContext(settings=INTERVAL)
    ctx.join("m1")
    ctx.now_ms -= 3_600_000
    assert ctx.join("m2").statuses == []


# --- 8 revoke first, then assign ---


def test_tasks_move_in_two_steps() -> None:
    ctx = CoordinatorContext()
    assert ctx.join("m1").active == {"0": (0, 1, 2, 3)}
    waiting = ctx.join("m2")
    assert (waiting.active, waiting.epoch) == ({}, 3)
    told = ctx.heartbeat("m1", 2)
    assert (told.active, told.epoch) == ({"0": (0, 1)}, 2)
    assert ctx.heartbeat("m2", 3).active is None
    assert ctx.heartbeat("m1", 2, active={"0": (0, 1, 2)}).epoch == 2, "2 is not given up yet"
    acknowledged = ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    assert (acknowledged.active, acknowledged.epoch) == (None, 3)
    assert ctx.heartbeat("m2", 3).active == {"0": (2, 3)}


def test_a_standby_runs_in_another_process_and_becomes_active() -> None:
    settings = {"group.streams.num.standby.replicas": 1}
    ctx = CoordinatorContext(topics={"in": 2, "cl": 2}, settings=settings)
    ctx.join("m1", topology=STATEFUL, process_id="p")
    ctx.join("m2", topology=STATEFUL, process_id="p")
    assert [ctx.heartbeat("m1", 2).standby, ctx.heartbeat("m2", 3).standby] == [{}, None], "there is one process only"
    ctx.heartbeat("m1", 2, active={"0": (0,)})
    ctx.heartbeat("m2", 3)
    joined = ctx.join("m3", topology=STATEFUL, process_id="q")
    assert joined.standby == {"0": (0, 1)}
    ctx.leave("m1")
    ctx.sleep(0)
    told = ctx.heartbeat("m3", 4)
    assert (told.active, told.standby) == ({"0": (0,)}, {"0": (1,)}), "its standby becomes active where it is"


def test_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", rebalance_timeout_ms=10_000)
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.sleep(9_999)
    ctx.heartbeat("m1", 2)
    ctx.sleep(1)
    assert refused(lambda: ctx.heartbeat("m1", 2)) == "unknown_member_id"
    assert ctx.heartbeat("m2", 3).active == {"0": (0, 1, 2, 3)}


def test_a_member_that_revoked_in_time_stays() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", rebalance_timeout_ms=10_000)
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    ctx.sleep(20_000)
    assert ctx.heartbeat("m1", 3).records == ()


# --- going ---


def test_silent_member_is_fenced_and_its_tasks_are_reassigned() -> None:
    ctx = two_members()
    ctx.sleep(30_000)
    ctx.heartbeat("m2", 3)
    ctx.sleep(15_000)
    targets = {each.member_id: each.target_assignment.active_tasks for each in ctx.describe().members}
    assert list(targets) == ["m2"]
    assert targets["m2"][0].partitions == (0, 1, 2, 3)
    assert ctx.heartbeat("m2", 3).active == {"0": (0, 1, 2, 3)}


def test_leaving_writes_tombstones_and_a_new_epoch() -> None:
    ctx = two_members()
    outcome = ctx.leave("m1")
    assert outcome.record_names == [
        "CurrentMemberAssignment!",
        "TargetAssignmentMember!",
        "MemberMetadata!",
        "Metadata",
    ]
    assert (outcome.epoch, outcome.active, outcome.statuses) == (-1, None, [])
    assert ctx.describe().group_epoch == 4
    ctx.leave("m2")
    assert (ctx.state(), ctx.shard.next_deadline_ms()) == ("Empty", None)


def test_shutdown_reaches_everybody_until_the_group_is_empty() -> None:
    ctx = two_members()
    assert ctx.heartbeat("m1", 3, shutdown=True).statuses == [4]
    assert ctx.heartbeat("m2", 3).statuses == [4]
    ctx.leave("m1")
    assert ctx.join("m3").statuses == [4]
    for member in ("m2", "m3"):
        ctx.leave(member)
    assert ctx.join("m1").statuses == []


def test_the_first_to_ask_for_a_shutdown_is_named() -> None:
    ctx = two_members()
    ctx.heartbeat("m2", 3, shutdown=True)
    ctx.leave("m2")
    (status,) = ctx.heartbeat("m1", 3, shutdown=True).response.status
    assert "member m2 " in status.status_detail


# --- endpoints ---


def test_an_endpoint_without_topics_is_no_error() -> None:
    ctx = CoordinatorContext(topics={})
    outcome = ctx.join("m1", endpoint=("h", 1))
    assert outcome.statuses == [1]
    (entry,) = outcome.response.partitions_by_user_endpoint
    assert (entry.user_endpoint.host, entry.active_partitions, entry.standby_partitions) == ("h", (), ())


def test_endpoints_are_told_when_they_changed() -> None:
    ctx = CoordinatorContext()
    epoch = ctx.join("m1", endpoint=("h", 1)).response.endpoint_information_epoch
    unchanged = ctx.heartbeat("m1", 2, endpoint_information_epoch=epoch)
    assert unchanged.response.partitions_by_user_endpoint is None
    ctx.join("m2")
    revoking = ctx.heartbeat("m1", 2, endpoint_information_epoch=epoch).response
    assert revoking.endpoint_information_epoch == epoch + 1
    (entry,) = revoking.partitions_by_user_endpoint
    assert [(each.topic, each.partitions) for each in entry.active_partitions] == [("in", (0, 1))]


# --- restart ---


def test_a_restart_in_the_middle_of_a_revocation_loses_nothing() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    before = ctx.shard.digest()
    ctx.restart()
    assert ctx.shard.digest() == before
    assert ctx.heartbeat("m1", 2, active={"0": (0, 1)}).epoch == 3
    assert ctx.heartbeat("m2", 3).active == {"0": (2, 3)}


def test_after_a_restart_silent_members_and_open_revocations_time_out() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1", rebalance_timeout_ms=10_000)
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.restart()
    ctx.sleep(10_000)
    assert [each.member_id for each in ctx.describe().members] == ["m2"]
    ctx.sleep(35_000)
    assert ctx.state() == "Empty"


def test_a_restart_in_the_initial_delay_computes_the_target() -> None:
    ctx = CoordinatorContext(settings=DELAYED)
    ctx.join("m1")
    ctx.restart()
    ctx.sleep(1_000)
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1, 2, 3)}


def test_loading_again_inside_the_initial_delay_keeps_the_delay() -> None:
    """The runner does it after a failed append."""
    ctx = CoordinatorContext(settings=DELAYED)
    ctx.join("m1")
    ctx.apply(ctx.shard.on_loaded(now_ms=ctx.now_ms))
    ctx.sleep(1_000)
    assert ctx.heartbeat("m1", 1).statuses == [5]
    ctx.sleep(2_000)
    assert ctx.heartbeat("m1", 1).active == {"0": (0, 1, 2, 3)}


def test_a_failed_append_leaves_everything_as_it_was() -> None:
    ctx = two_members()
    before = ctx.shard.digest()
    request = ctx.request(
        "m3", 0, active={}, topology=STATELESS, rebalance_timeout_ms=1, process_id="p", client_tags=()
    )
    ctx.shard.streams_group_heartbeat(request, ctx.context(), now_ms=ctx.now_ms)
    assert ctx.shard.digest() == before
    assert ctx.heartbeat("m1", 3).records == ()
    assert ctx.join("m3").epoch == 4
