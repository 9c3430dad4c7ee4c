"""Findings from events and log lines: each cause is named, healthy histories have none."""

from __future__ import annotations

import pytest

from headrace.cli.doctor.client_logs import find_causes
from headrace.cli.doctor.findings import diagnose
from headrace.cli.doctor.group_events import EventKind, GroupEvent

MINUTE_MS = 60_000


def event(
    kind: EventKind, minute: float, member: str = "", *, client: str = "", instance: str | None = None
) -> GroupEvent:
    return GroupEvent(
        at_ms=int(minute * MINUTE_MS),
        kind=kind,
        member_id=member,
        client_id=client or member,
        client_host="/10.0.0.1",
        instance_id=instance,
    )


def causes(*events: GroupEvent, logs: str = "") -> list[str]:
    found = diagnose(events, find_causes(logs.splitlines(), file="x.log"))
    assert all(finding.evidence and finding.fix.endswith(".") for finding in found)
    return [finding.cause for finding in found]


def test_healthy_histories_have_no_finding() -> None:
    starts = [event("joined", 0, name) for name in "abc"]
    assert causes() == []
    assert causes(*starts) == []
    assert causes(*starts, *(event("left", 60, name) for name in "abc")) == []
    assert causes(*starts, event("joined", 30, "d"), event("left", 90, "d")) == []  # scaled out and in
    # One restart, and a rolling restart of static members.
    assert causes(*starts, event("left", 30, "a"), event("joined", 31, "e", client="a")) == []
    assert causes(*(event("replaced", 5 + n, f"m{n}", instance=f"i{n}") for n in range(9))) == []
    # Several members of one process have one client id; they start and stop together.
    many = [event("joined", 0, f"m{n}", client="app") for n in range(8)]
    assert causes(*many, *(event("left", 60, f"m{n}", client="app") for n in range(8))) == []


def test_a_member_that_comes_back_again_and_again_is_flapping() -> None:
    history = [event("joined", 0, "m0", client="bad"), event("joined", 0, "good")]
    for turn in range(1, 5):
        history += [event("left", turn * 5, f"m{turn - 1}", client="bad")]
        history += [event("joined", turn * 5 + 1, f"m{turn}", client="bad")]
    assert causes(*history) == ["flapping-member"]


def test_a_rolling_deploy_without_static_members_is_named() -> None:
    history = [event("joined", 0, f"old-{n}") for n in range(4)]
    for number in range(4):
        history += [event("left", 60 + number, f"old-{number}"), event("joined", 60.5 + number, f"new-{number}")]
    assert causes(*history) == ["rolling-deploy-without-static-members"]


def test_changes_of_partitions_subscriptions_and_topologies_are_named() -> None:
    assert causes(event("metadata", 1)) == ["partition-change"]
    assert causes(event("subscription", 1, "a"), event("subscription", 2, "b"), event("topology", 3)) == [
        "subscription-change",
        "topology-change",
    ]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[Consumer clientId=c] consumer poll timeout has expired. This means the time between", "slow-batches"),
        ("[Consumer clientId=c] Consumer poll timeout has expired. This means the time between", "slow-batches"),
        ("than the configured max.poll.interval.ms, exceeded approximately by 5101 ms. Member", "slow-batches"),
        ("%4|1|MAXPOLL|c#consumer-1| Application maximum poll interval (300000ms) exceeded by 9ms", "slow-batches"),
        ("Member c-1 in group orders has failed, removing it from the group", "session-expired"),
        ("[GroupId g] Member m fenced from the group because its session expired.", "session-expired"),
        ("Heartbeat session expired, marking coordinator dead", "session-expired"),
        ("Connection to node 1 (kafka/10.0.0.1:9092) could not be established. Node may", "unreachable-coordinator"),
        ("org.apache.kafka.common.errors.FencedInstanceIdException: The broker rejected this", "fenced-instance"),
    ],
)  # fmt: skip
def test_lines_of_known_clients_name_their_cause(line: str, cause: str) -> None:
    assert causes(logs=f"an ordinary line\n{line}\n") == [cause]


def test_a_logged_cause_is_ranked_before_its_effect() -> None:
    history = [event("joined", 0, "m0", client="bad")]
    for turn in range(1, 5):
        history += [event("left", turn * 5, f"m{turn - 1}", client="bad")]
        history += [event("joined", turn * 5 + 1, f"m{turn}", client="bad")]
    logs = "consumer poll timeout has expired\n" * 4
    assert causes(*history, logs=logs) == ["slow-batches", "flapping-member"]
