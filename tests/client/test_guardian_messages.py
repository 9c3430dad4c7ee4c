"""Messages between a guardian and its driver."""

from __future__ import annotations

import typing

import pytest

from headrace.client.guardian_messages import (
    _EVENTS,
    GuardianSettings,
    read_event,
    read_settings,
    write_event,
    write_settings,
)
from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.client.membership.endpoints import Endpoint, EndpointPartitions
from headrace.client.membership.target_assignment_poller import TargetAssignment
from headrace.client.membership.topology import Subtopology, Topology


@pytest.mark.parametrize(
    "event",
    [
        e.AssignmentChanged(
            assignment=AssignmentSnapshot(member_id="m", active={"a": (1,)}, standby={"a": (2,)}),
            added={"a": (1,)},
            revoked={"a": (3,)},
            standby_added={"a": (2,)},
            warmup_removed={"a": (1,)},
        ),
        e.TargetSeen(
            target=TargetAssignment(group_epoch=3, assignment_epoch=2, active={"a": (0, 1)}, standby={"b": (2,)}),
            to_come={"a": (1,)},
        ),
        e.EndpointsChanged(endpoints={Endpoint("h", 1): EndpointPartitions(active={"t": (0,)}, standby={"t": (1,)})}),
        e.SettingIgnored(setting="group.instance.id", message="m", fix="f"),
        e.InstanceIdTaken(instance_id="pod", member_id="m", holder=None),
        e.Left(confirmed=True, will_return=True),
        e.NotReady(status=((1, "missing"),)),
        e.Lost(reason="fenced"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_travel_between_processes_unchanged(event: e.MemberEvent) -> None:
    snapshot = AssignmentSnapshot(member_id="m", member_epoch=4, active={"a": (1, 2)}, version=3)
    assert read_event(write_event(event, snapshot)) == (event, snapshot)


def test_the_generations_of_held_tasks_travel_with_the_snapshot() -> None:
    held = {("a", 1): 4, ("a", 2): 2}
    snapshot = AssignmentSnapshot(member_id="m", member_epoch=4, active={"a": (1, 2)}, version=3, held_since=held)
    event = e.Assigned(assignment=snapshot)
    assert read_event(write_event(event, snapshot)) == (event, snapshot)


def test_every_event_is_known_on_both_sides() -> None:
    assert {kind.__name__ for kind in typing.get_args(e.MemberEvent)} == set(_EVENTS)


@pytest.mark.parametrize("endpoint", [None, Endpoint("here", 8080), Endpoint("::1", 8080)])
def test_settings_travel_to_the_guardian_unchanged(endpoint: Endpoint | None) -> None:
    settings = GuardianSettings(
        bootstrap_servers="localhost:9092",
        group_id="app",
        topology=Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),)),
        member_id="m",
        process_id="p",
        endpoint=endpoint,
        instance_id="pod-1",
        acceptable_recovery_lag=10,
        task_offsets=(("flights", 0, 5),),
        security={"sasl.jaas.config": "secret"},
    )
    read, driver_pid = read_settings(write_settings(settings, driver_pid=7))
    assert (read, driver_pid) == (settings, 7)
    assert "secret" not in repr(read)
