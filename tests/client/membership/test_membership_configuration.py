"""The membership that a configuration makes."""

from __future__ import annotations

import pytest

from headrace.client.membership.classic_streams_membership import ClassicStreamsMembership
from headrace.client.membership.member_core import MemberState
from headrace.client.membership.membership_configuration import MembershipConfiguration, create_membership
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.streams_protocol import StreamsProtocol
from headrace.client.membership.topology import Subtopology, Topology

TOPOLOGY = Topology(subtopologies=(Subtopology(subtopology_id="counts", source_topics=("flights",)),))


@pytest.mark.parametrize(
    ("protocol", "member_id", "kind"),
    [("streams", "m-1", StreamsMembership), ("classic", "", ClassicStreamsMembership)],
)
def test_the_group_protocol_chooses_the_membership(
    protocol: StreamsProtocol, member_id: str, kind: type[StreamsMembership | ClassicStreamsMembership]
) -> None:
    configuration = MembershipConfiguration(
        group_id="g", member_id=member_id, process_id="p-1", topology=TOPOLOGY, group_protocol=protocol
    )
    membership = create_membership(configuration, chance=lambda: 0.5)
    assert isinstance(membership, kind)
    assert membership.assignment.member_id == member_id
    membership.join(0)
    assert membership.state is MemberState.JOINING
    assert len(membership.poll(0).requests) == 1, "it looks up the coordinator"
