"""The common part of streams members in both kinds of groups: states, the end of a lease, and leaving."""

from __future__ import annotations

import pytest
from tests.client.membership.streams_scripts import kinds

from headrace.client.membership import events as e
from headrace.client.membership.member_core import LEAVE_TIMEOUT_MS, VALID_PREVIOUS, MemberCore, MemberState
from headrace.client.membership.membership_configuration import MembershipConfiguration, create_membership
from headrace.client.membership.request_manager import NEVER_MS
from headrace.client.membership.streams_protocol import StreamsProtocol
from headrace.client.membership.topology import Subtopology, Topology
from headrace.errors import ConfigError

BOTH_KINDS = pytest.mark.parametrize("group_protocol", ["streams", "classic"])


def joining_member(group_protocol: StreamsProtocol) -> MemberCore:
    """A member whose lookup of the coordinator is in flight since 1,000 ms."""
    configuration = MembershipConfiguration(
        group_id="app",
        member_id="m-1",
        process_id="p-1",
        topology=Topology(subtopologies=(Subtopology(subtopology_id="flights", source_topics=("flights",)),)),
        group_protocol=group_protocol,
    )
    member = create_membership(configuration, chance=lambda: 0.0)
    member.join(1_000)
    assert member.poll(1_000).requests
    return member


def test_every_state_can_be_entered_and_the_table_names_no_other() -> None:
    assert set(VALID_PREVIOUS) == set(MemberState)
    assert all(previous for previous in VALID_PREVIOUS.values())
    assert MemberState.FATAL not in {state for previous in VALID_PREVIOUS.values() for state in previous}


@BOTH_KINDS
def test_stop_during_a_leave_leaves_nothing_due(group_protocol: StreamsProtocol) -> None:
    member = joining_member(group_protocol)
    member.leave(2_000)
    member.stop(ConfigError("bad-value", "Wrong.", "Correct it."))
    assert member.state is MemberState.FATAL
    assert [kind for kind in kinds(member.take_events()) if kind != "Left"] == ["Fatal"]
    assert member.poll(2_000 + LEAVE_TIMEOUT_MS).next_poll_ms == NEVER_MS


@BOTH_KINDS
def test_leave_without_a_coordinator_ends_after_its_time(group_protocol: StreamsProtocol) -> None:
    member = joining_member(group_protocol)
    member.on_failure(1_500)
    member.leave(2_000)
    member.poll(2_000 + LEAVE_TIMEOUT_MS)
    assert member.state is MemberState.UNSUBSCRIBED
    assert member.take_events() == (e.Left(confirmed=False),), "nothing was assigned, so nothing is lost"


@BOTH_KINDS
def test_forbidden_transition_is_an_error(group_protocol: StreamsProtocol) -> None:
    member = joining_member(group_protocol)
    with pytest.raises(AssertionError, match="does not lead to"):
        member.join(2_000)
