"""Descriptions of classic groups whose members run streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.command_lines import GROUP, Worker, flight_topology
from tests.harness.brokers import CLASSIC_GROUPS_WITHOUT_DELAYS
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.admin_results import GroupListing, StreamsGroupDescription
from headrace.client.classic_streams_groups import NO_EPOCH, may_run_streams, read_classic_streams_group
from headrace.client.consumer.consumer import Consumer
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m

FLIGHTS, BY_ORIGIN = 4, 2


@pytest.fixture(name="broker", scope="module")
def broker_without_streams() -> Iterator[EmbeddedBroker]:
    config = {**CLASSIC_GROUPS_WITHOUT_DELAYS, "group.coordinator.rebalance.protocols": "classic,consumer"}
    with EmbeddedBroker({"flights": FLIGHTS}, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def shared(broker: EmbeddedBroker) -> Iterator[tuple[Worker, Worker]]:
    """Two members with three tasks each."""
    workers = [
        Worker(broker, f"flight-delays-{name}", flight_topology(), "auto", endpoint=f"127.0.0.1:{7000 + number}")
        for number, name in enumerate("AB")
    ]
    with Admin(broker.bootstrap_servers) as admin:
        # The description is ahead of the members, which learn of their assignment with the answer to the sync.
        wait_until(lambda: _is_shared(admin, workers), "shared")
    yield workers[0], workers[1]
    for worker in workers:
        worker.close()


def _is_shared(admin: Admin, workers: list[Worker]) -> bool:
    group = admin.try_describe_streams_groups([GROUP]).done.get(GROUP)
    if group is None or group.state != "Stable":
        return False
    described = {member.member_id: member.assignment.active for member in group.members}
    known = {worker.member_id: worker.member.assignment.active for worker in workers}
    return described == known and [_tasks(member) for member in group.members] == [3, 3]


def _tasks(member: Any) -> int:
    return sum(map(len, member.assignment.active.values()))


def test_a_classic_group_is_described_with_tasks_and_topology(
    broker: EmbeddedBroker, shared: tuple[Worker, Worker]
) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        group = admin.describe_streams_groups([GROUP])[GROUP]
        assert (group.group_type, group.state, group.group_epoch) == ("classic", "Stable", NO_EPOCH)
        assert group.topology is not None
        assert {each.subtopology_id: each.source_topics for each in group.topology.subtopologies} == {
            "flights": ("flights",),
            "by-origin": (),
        }
        assert sorted(member.client_id for member in group.members) == ["flight-delays-A", "flight-delays-B"]
        by_id = {worker.member_id: worker for worker in shared}
        for member in group.members:
            assert member.assignment.active == by_id[member.member_id].member.assignment.active
            assert member.process_id
            assert member.user_endpoint == ("127.0.0.1", 7000 + "AB".index(member.client_id[-1]))
        # The same group in the eyes of Kafka's tools.
        assert admin.describe_consumer_groups([GROUP])[GROUP].group_type == "classic"


def test_groups_of_consumers_and_groups_without_members_are_not_taken_for_streams(broker: EmbeddedBroker) -> None:
    consumers = Consumer(
        group_id="readers", group_protocol="classic", bootstrap_servers=broker.bootstrap_servers,
        auto_offset_reset="latest",
    )  # fmt: skip
    with consumers as consumer, Admin(broker.bootstrap_servers) as admin:
        consumer.subscribe(["flights"])
        wait_until(lambda: consumer.poll(0.1) is not None and bool(consumer.assignment()))
        found = admin.try_describe_streams_groups(["readers", "absent"])
        assert found.done == {}
        assert set(found.errors) == {"readers", "absent"}


def test_a_group_that_rebalances_is_known_by_its_topology(
    broker: EmbeddedBroker, shared: tuple[Worker, Worker]
) -> None:
    described = _described(broker)
    stable = read_classic_streams_group(described)
    rebalancing = read_classic_streams_group(_without_protocol(described))
    assert isinstance(stable, StreamsGroupDescription)
    assert isinstance(rebalancing, StreamsGroupDescription)
    assert [each.assignment for each in rebalancing.members] == [each.assignment for each in stable.members]
    assert rebalancing.topology == stable.topology
    assert {each.process_id for each in rebalancing.members} == {""}


def test_bytes_that_cannot_be_decoded_hide_no_member(broker: EmbeddedBroker, shared: tuple[Worker, Worker]) -> None:
    described = _described(broker)
    first, second = described.members
    strange = _changed(first, member_metadata=b"\x00", member_assignment=b"\x00\x01\xff")
    group = read_classic_streams_group(_changed(described, members=(strange, second)))
    assert group is not None
    assert sorted(_tasks(member) for member in group.members) == [0, 3]


@pytest.mark.parametrize(
    ("kind", "protocol_type", "state", "may"),
    [
        ("classic", "consumer", "Stable", True),
        ("", "consumer", "PreparingRebalance", True),
        ("classic", "connect", "Stable", False),
        ("consumer", "consumer", "Stable", False),
        ("classic", "consumer", "Empty", False),
    ],
)
def test_candidates_of_a_list(kind: str, protocol_type: str, state: str, may: bool) -> None:
    listed = GroupListing(group_id="g", group_type=kind, state=state, protocol_type=protocol_type)
    assert may_run_streams(listed) is may


def _described(broker: EmbeddedBroker) -> m.describe_groups_response.DescribedGroup:
    request = m.describe_groups_request.DescribeGroupsRequest(groups=(GROUP,), include_authorized_operations=False)  # type: ignore[arg-type]
    with NetworkClient(broker.bootstrap_servers, api_timeout_ms=30_000) as client:
        response = client.call_coordinator(GROUP, request, lambda answer: [each.error_code for each in answer.groups])
    return response.groups[0]


def _without_protocol(
    described: m.describe_groups_response.DescribedGroup,
) -> m.describe_groups_response.DescribedGroup:
    """The group as Kafka describes it during a rebalance: no protocol, no subscriptions."""
    members = tuple(_changed(each, member_metadata=b"") for each in described.members)
    return _changed(described, protocol_data="", group_state="PreparingRebalance", members=members)


def _changed(value: Any, **fields: Any) -> Any:
    from dataclasses import replace

    return replace(value, **fields)
