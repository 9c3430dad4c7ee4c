"""Endpoints of members (KIP-1071): sent with the join, and the map of all of them."""

from __future__ import annotations

import pytest
from tests.client.membership.scripted_coordinator import ScriptedCoordinator
from tests.client.membership.streams_scripts import HALF, MINE, OTHER

from headrace.client.membership import events as e
from headrace.client.membership.endpoints import Endpoint, EndpointPartitions, owner_of


def test_the_endpoint_goes_out_with_the_join_and_the_map_comes_back_frozen() -> None:
    script = ScriptedCoordinator(endpoint=MINE)
    script.member.join(script.now_ms)
    script.next_sent()
    script.find_coordinator()
    join = script.next_sent()
    assert (join.user_endpoint.host, join.user_endpoint.port, join.endpoint_information_epoch) == ("here", 8080, -1)
    script.answer(active=HALF)  # names epoch 0 without a map, as to the first member of a group
    beat = script.next_sent()
    assert (beat.user_endpoint, beat.endpoint_information_epoch) == (None, -1)
    script.answer(
        endpoint_epoch=3,
        endpoints=[
            ("there", 8081, {"flights": [2, 3]}, {}),
            ("here", 8080, {"flights": [0]}, {"flights": [3]}),
            ("here", 8080, {"flights": [1]}, {}),
        ],
    )
    changed = script.events()[-1]
    assert changed == e.EndpointsChanged(
        endpoints={
            MINE: EndpointPartitions(active={"flights": (0, 1)}, standby={"flights": (3,)}),
            OTHER: EndpointPartitions(active={"flights": (2, 3)}),
        }
    )
    assert script.member.endpoints == changed.endpoints
    assert owner_of(changed.endpoints, "flights", 3) == OTHER
    assert owner_of(changed.endpoints, "flights", 9) is None
    with pytest.raises(TypeError):
        changed.endpoints[MINE] = None  # type: ignore[index]
    assert script.next_sent().endpoint_information_epoch == 3
    script.answer(endpoint_epoch=3)
    assert script.events() == (), "unchanged"


def test_another_coordinator_is_asked_for_the_whole_map() -> None:
    """The epoch is soft state of a coordinator: after a failover the same number may mean something else."""
    script = ScriptedCoordinator(endpoint=MINE)
    script.joined(active=HALF)
    script.next_sent()
    script.answer(endpoint_epoch=2, endpoints=[("here", 8080, {"flights": [0, 1]}, {})])
    script.next_sent()
    script.member.on_failure(script.now_ms)
    script.next_sent()
    script.find_coordinator(node=2)
    assert script.next_sent().endpoint_information_epoch == -1


def test_group_without_endpoints_is_not_asked_repeatedly() -> None:
    script = ScriptedCoordinator()
    script.joined(active=HALF)
    script.next_sent()
    script.answer(endpoint_epoch=0)
    assert script.next_sent().endpoint_information_epoch == 0


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:http"])
def test_invalid_endpoints_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        Endpoint.parse(text)
