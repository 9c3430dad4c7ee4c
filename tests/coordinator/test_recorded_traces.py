"""Our replies and records beside those of Apache Kafka's own classes (`traces/`, recorded from 4.4.0).

All is compared, replies, records and the group after each step, but for what we do not store (the epochs of topology
descriptions) and what is random (the metadata hash, of random topic ids). Where we differ on purpose a step names why:

    timer      the target comes with the timer or the metadata, not with the next heartbeat: both together bring
               Kafka's records
    kept       soft state of the very first heartbeat is kept (endpoint epoch, shutdown request)

What differs between Kafka 4.3.1 and 4.4.0, and which of the two we follow, is in `docs/reference/limitations.md`.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, STATELESS, CoordinatorContext, Outcome
from tests.coordinator.recorded_traces import RecordedStep, parse, read_traces

from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorRecord

TRACES = Path(__file__).parent / "traces"
SCENARIOS = {**read_traces(TRACES / "heartbeats-1.txt"), **read_traces(TRACES / "heartbeats-2.txt")}
NOW_MS = 1_005_000
_NOT_COMPARED = {
    "metadataHash",
    "storedDescriptionTopologyEpoch",
    "failedDescriptionTopologyEpoch",
}
_RESPONSE_FIELDS = (
    "memberId",
    "memberEpoch",
    "heartbeatIntervalMs",
    "taskOffsetIntervalMs",
    "acceptableRecoveryLag",
    "topologyDescriptionRequired",
    "status",
    "activeTasks",
    "standbyTasks",
    "warmupTasks",
)


def scenario(letter: str) -> list[RecordedStep]:
    return next(steps for name, steps in SCENARIOS.items() if name.startswith(letter + " "))


def snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: "_" + match.group(1).lower(), name)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def as_kafka(value: Any) -> Any:
    """Our record value in the shape of the trace."""
    if isinstance(value, dict):
        return {camel(key): as_kafka(each) for key, each in value.items() if camel(key) not in _NOT_COMPARED}
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str) for part in value):
        return {"key": value[0], "value": value[1]}
    if isinstance(value, (tuple, list)):
        return [as_kafka(each) for each in value]
    return value


def our_record(record: CoordinatorRecord) -> tuple[str, Any]:
    name = type(record.key).__name__.removeprefix("StreamsGroup").removesuffix("Key")
    return name, None if record.value is None else as_kafka(asdict(record.value))  # type: ignore[call-overload]


def recorded(step: RecordedStep) -> list[tuple[str, Any]]:
    """The trace's records without what is not compared; empty epochs of standby tasks are absent epochs."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {key: clean(each) for key, each in value.items() if key not in _NOT_COMPARED}
            if kept.get("assignmentEpochs") == []:
                kept["assignmentEpochs"] = None
            return kept
        return [clean(each) for each in value] if isinstance(value, list) else value

    return [(name, clean(value)) for name, value in step.records]


def our_reply(outcome: Outcome) -> dict[str, Any]:
    r = outcome.response
    tasks = {
        camel(name): None
        if given is None
        else [{"subtopologyId": t.subtopology_id, "partitions": list(t.partitions)} for t in given]
        for name, given in (
            ("active_tasks", r.active_tasks),
            ("standby_tasks", r.standby_tasks),
            ("warmup_tasks", r.warmup_tasks),
        )
    }
    return {
        "memberId": r.member_id,
        "memberEpoch": r.member_epoch,
        "heartbeatIntervalMs": r.heartbeat_interval.total_seconds() * 1000,
        "taskOffsetIntervalMs": r.task_offset_interval.total_seconds() * 1000,
        "acceptableRecoveryLag": r.acceptable_recovery_lag,
        "topologyDescriptionRequired": r.topology_description_required,
        "status": [{"statusCode": s.status_code, "statusDetail": s.status_detail} for s in r.status],
        **tasks,
    }


def assert_same(
    ctx: CoordinatorContext,
    step: RecordedStep,
    outcome: Outcome,
    *,
    before: list[CoordinatorRecord] | None = None,
) -> None:
    """The reply, the records, the group; `before` are records that the timer or the metadata brought already."""
    assert step.response is not None
    assert our_reply(outcome) == {name: step.response[name] for name in _RESPONSE_FIELDS}
    ours = [our_record(record) for record in (*(before or ()), *outcome.records)]
    assert ours == recorded(step)
    described = ctx.describe()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == step.group


def context(**given: Any) -> CoordinatorContext:
    return CoordinatorContext(now_ms=NOW_MS, **given)


def join(ctx: CoordinatorContext, member_id: str, **given: Any) -> Outcome:
    return ctx.join(member_id, process_id=member_id.replace("m", "p"), **given)


def test_the_parser_reads_what_java_prints() -> None:
    text = "Reply(a=-1, b=null, c=[T(id='0', ps=[0, 1])], d='it''s', e=true, f=[in])"
    assert parse(text.replace("''", "")) == {
        "a": -1, "b": None, "c": [{"id": "0", "ps": [0, 1]}], "d": "its", "e": True, "f": ["in"]
    }  # fmt: skip
    assert sorted(name[0] for name in SCENARIOS) == list("ABCDEFG")


def test_a_a_single_member_and_the_initial_delay() -> None:
    joined, _, beat = scenario("A")
    ctx = CoordinatorContext(now_ms=NOW_MS - 3_000, settings={"group.streams.initial.rebalance.delay.ms": 3_000})
    assert_same(ctx, joined, join(ctx, "m1"))
    by_timer = ctx.sleep(3_000)  # timer
    assert [type(record.key).__name__ for record in by_timer] == [
        "StreamsGroupTargetAssignmentMemberKey",
        "StreamsGroupTargetAssignmentMetadataKey",
    ]
    assert_same(ctx, beat, ctx.heartbeat("m1", 1), before=by_timer)


def test_b_the_group_is_full() -> None:
    joined, refused, rejoined = scenario("B")
    ctx = context(settings={"group.streams.max.size": 1})
    assert_same(ctx, joined, join(ctx, "m1"))
    with pytest.raises(CoordinatorError) as caught:
        join(ctx, "m2")
    assert caught.value.code.name == refused.error
    assert_same(ctx, rejoined, join(ctx, "m1"))


def test_c_endpoints() -> None:
    joined, beat, second, revoking = scenario("C")
    ctx = context()
    endpoint_epoch = 0

    def check(step: RecordedStep, outcome: Outcome) -> None:
        nonlocal endpoint_epoch
        assert_same(ctx, step, outcome)
        endpoint_epoch = outcome.response.endpoint_information_epoch
        assert step.response is not None
        assert endpoint_epoch == step.response["endpointInformationEpoch"] + 1  # kept
        endpoints = outcome.response.partitions_by_user_endpoint
        ours = None if endpoints is None else [
            {
                "userEndpoint": {"host": each.user_endpoint.host, "port": each.user_endpoint.port},
                "activePartitions": [
                    {"topic": t.topic, "partitions": list(t.partitions)} for t in each.active_partitions
                ],
                "standbyPartitions": [],
            }
            for each in endpoints
        ]  # fmt: skip
        theirs = step.response["partitionsByUserEndpoint"]
        order = str  # one entry per member; Kafka's order is that of a hash map
        assert (ours and sorted(ours, key=order)) == (theirs and sorted(theirs, key=order))

    check(joined, join(ctx, "m1", endpoint=("h", 1)))
    check(beat, ctx.heartbeat("m1", 2, endpoint_information_epoch=endpoint_epoch))
    check(second, join(ctx, "m2", endpoint=("h", 1)))
    check(revoking, ctx.heartbeat("m1", 2, endpoint_information_epoch=endpoint_epoch - 1))


def test_d_active_tasks_and_standbys_move() -> None:
    joined, second, revoking, acknowledged, released, left, alone = scenario("D")
    ctx = context(topics={"in": 2, "cl": 2}, settings={"group.streams.num.standby.replicas": 1})
    assert_same(ctx, joined, join(ctx, "m1", topology=STATEFUL))
    assert_same(ctx, second, join(ctx, "m2", topology=STATEFUL))
    assert_same(ctx, revoking, ctx.heartbeat("m1", 2))
    assert_same(ctx, acknowledged, ctx.heartbeat("m1", 2, active={"0": (0,)}, standby={"0": (1,)}))
    assert_same(ctx, released, ctx.heartbeat("m2", 3))
    assert_same(ctx, left, ctx.leave("m1"))
    by_timer = ctx.sleep(0)
    assert_same(ctx, alone, ctx.heartbeat("m2", 3), before=by_timer)


def test_e_a_source_topic_of_a_stateful_application_grows() -> None:
    joined, beat, grown, _acknowledged = scenario("E")
    ctx = CoordinatorContext(now_ms=1_000_000, topics={"in": 2, "cl": 2})
    assert_same(ctx, joined, join(ctx, "m1", topology=STATEFUL))
    assert_same(ctx, beat, ctx.heartbeat("m1", 2))
    ctx.set_topics({"in": 4, "cl": 2})
    assert grown.response is not None
    assert [each["statusCode"] for each in grown.response["status"]] == [2]
    assert grown.response["activeTasks"] == []
    outcome = ctx.heartbeat("m1", 2)
    assert (outcome.statuses, outcome.active, outcome.epoch) == ([0], None, 3)  # the tasks stay


def test_f_a_source_topic_of_a_stateless_application_grows() -> None:
    joined, beat, grown = scenario("F")
    ctx = CoordinatorContext(now_ms=1_000_000, topics={"in": 2, "cl": 2})
    assert_same(ctx, joined, join(ctx, "m1", topology=STATELESS))
    assert_same(ctx, beat, ctx.heartbeat("m1", 2))
    by_image = ctx.set_topics({"in": 4, "cl": 2})
    assert by_image, "the metadata alone moves the group"
    assert_same(ctx, grown, ctx.heartbeat("m1", 2), before=by_image)


def test_g_shutdown_is_asked_for_with_the_first_heartbeat() -> None:
    joined, beat = scenario("G")
    ctx = CoordinatorContext(now_ms=1_000_000, topics={"in": 2})
    assert_same(ctx, joined, join(ctx, "m1", shutdown=True))
    outcome = ctx.heartbeat("m1", 2)
    assert outcome.statuses == [4]  # kept
    assert beat.response is not None
    assert beat.response["status"] == []
    assert outcome.records == ()
