"""Configuration of a membership, for both kinds of groups, and the membership that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.client.membership.classic_streams_membership import ClassicStreamsMembership
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.streams_membership import StreamsMembership
from headrace.client.membership.streams_protocol import StreamsProtocol
from headrace.client.membership.topology import Topology

__all__ = ["MembershipConfiguration", "create_membership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfiguration:
    """Configuration of one member of a streams group, or of a classic group whose members run streams.

    Attributes:
        group_id: The group.
        member_id: A UUID that the member generated. In a classic group, where the coordinator gives out ids: that of
            the member which this one continues, or empty.
        process_id: Identifies the process.
        topology: The application's topology.
        group_protocol: Kind of the group.
        rebalance_timeout_ms: Time that a revoked task may take.
        session_timeout_ms: Time without an answer after which the member gives up its tasks. In a classic group also
            `session.timeout.ms`.
        heartbeat_max_interval_ms: Streams groups: longest time between heartbeats.
        rack_id: The member's rack.
        instance_id: `group.instance.id` of a static member.
        endpoint: Address for interactive queries.
        early_look: Streams groups: whether to read the target assignment ahead.
        keeps_member_id: Streams groups: see `StreamsTransitions`.
        heartbeat_interval_ms: Classic groups: `heartbeat.interval.ms`.
        num_standby_replicas: Classic groups: standby tasks of each stateful task, where this member is the leader.
        acceptable_recovery_lag: Classic groups: see `ClassicTaskProtocol`.
    """

    group_id: str
    member_id: str
    process_id: str
    topology: Topology
    group_protocol: StreamsProtocol = "streams"
    rebalance_timeout_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_max_interval_ms: int = 500
    rack_id: str | None = None
    instance_id: str | None = None
    endpoint: Endpoint | None = None
    early_look: bool = False
    keeps_member_id: bool = False
    heartbeat_interval_ms: int = 3_000
    num_standby_replicas: int = 0
    acceptable_recovery_lag: int | None = None


def create_membership(
    configuration: MembershipConfiguration, *, chance: Callable[[], float]
) -> StreamsMembership | ClassicStreamsMembership:
    """Return a membership that has not joined. `chance` returns random numbers in [0, 1) for jitter."""
    if configuration.group_protocol == "classic":
        return _classic(configuration, chance)
    return StreamsMembership(
        configuration.group_id,
        configuration.member_id,
        configuration.process_id,
        configuration.topology,
        chance=chance,
        rebalance_timeout_ms=configuration.rebalance_timeout_ms,
        session_timeout_ms=configuration.session_timeout_ms,
        heartbeat_max_interval_ms=configuration.heartbeat_max_interval_ms,
        rack_id=configuration.rack_id,
        instance_id=configuration.instance_id,
        endpoint=configuration.endpoint,
        early_look=configuration.early_look,
        keeps_member_id=configuration.keeps_member_id,
    )


def _classic(configuration: MembershipConfiguration, chance: Callable[[], float]) -> ClassicStreamsMembership:
    # Imported here: only the leader of a classic group needs the rules of the coordinator.
    from headrace.client.membership.classic_task_protocol import ClassicTaskProtocol

    return ClassicStreamsMembership(
        configuration.group_id,
        ClassicTaskProtocol(
            topology=configuration.topology,
            process_id=configuration.process_id,
            endpoint=configuration.endpoint,
            num_standby_replicas=configuration.num_standby_replicas,
            acceptable_recovery_lag=configuration.acceptable_recovery_lag,
        ),
        configuration.topology,
        chance=chance,
        rebalance_timeout_ms=configuration.rebalance_timeout_ms,
        session_timeout_ms=configuration.session_timeout_ms,
        heartbeat_interval_ms=configuration.heartbeat_interval_ms,
        rack_id=configuration.rack_id,
        instance_id=configuration.instance_id,
        member_id=configuration.member_id,
    )
