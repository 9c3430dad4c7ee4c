"""Members of each kind of group that stay when their process is gone, and their removal; for any broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from headrace.client.admin import Admin
from headrace.client.consumer.consumer import Consumer
from headrace.client.membership.streams_heartbeat import Extras, MemberIdentity, join_request
from headrace.client.membership.topology import Subtopology, Topology
from headrace.client.network_client import NetworkClient

__all__ = ["check_removal"]


def check_removal(run: Callable[..., Any], servers: str, topic: str) -> None:
    """`run` runs a command line at these servers and returns its `code`, `out` and `err`; `topic` exists."""
    unique = uuid.uuid4().hex[:8]
    groups = {kind: f"{kind}-{unique}" for kind in ("streams", "consumer", "classic")}
    with NetworkClient(servers, client_id="absent") as client, Admin(client) as admin:
        _leave_a_streams_member(client, groups["streams"], topic)
        for protocol in ("consumer", "classic"):
            _leave_a_static_consumer(servers, groups[protocol], topic, protocol)
        for kind, group in groups.items():
            (member,) = admin.removable_members(group)
            assert member.protocol == kind
            at = ("--group", group)
            wrong = run("groups", "--remove-members", "--member", "nobody-there", *at)
            assert (wrong.code, len(admin.removable_members(group))) == (1, 1)
            assert "no such member or instance id" in wrong.err
            removed = run("groups", "--remove-members", "--member", member.instance_id or member.member_id, *at)
            assert (removed.code, removed.out) == (0, f"Removed {member.member_id} from {group}.\n"), removed.err
            assert admin.removable_members(group) == ()
            again = run("groups", "--remove-members", "--all-members", "--json", *at)
            assert json.loads(again.out) == {"group_id": group, "removed": [], "refused": {}}
            admin.delete_groups([group])
        missing = run("groups", "--remove-members", "--all-members", "--group", group)
        assert (missing.code, "error[group-missing]" in missing.err) == (1, True)


def _leave_a_streams_member(client: NetworkClient, group: str, topic: str) -> None:
    """It joins and is never heard of again: its session ends in 45 s, or an operator removes it."""
    identity = MemberIdentity(
        group_id=group,
        member_id=uuid.uuid4().hex,
        process_id=uuid.uuid4().hex,
        rack_id=None,
        rebalance_timeout_ms=60_000,
        topology=Topology(subtopologies=(Subtopology(subtopology_id="0", source_topics=(topic,)),)),
    )
    response = client.call_coordinator(group, join_request(identity, Extras()), lambda r: (r.error_code,))
    assert int(response.error_code) == 0, response


def _leave_a_static_consumer(servers: str, group: str, topic: str, protocol: str) -> None:
    """A static member keeps its place when it closes, until its session ends."""
    with Consumer(
        topic,
        group_id=group,
        group_instance_id=f"{group}-one",
        group_protocol=protocol,  # type: ignore[arg-type]
        bootstrap_servers=servers,
    ) as consumer:
        for _ in range(200):
            consumer.poll_records(0.1)
            if consumer.assignment():
                return
        raise AssertionError(f"no assignment in {group}")
