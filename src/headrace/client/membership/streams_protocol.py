"""Choice of the group protocol of members that run streams: streams groups (KIP-1071) or classic groups. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from headrace.client.broker_errors import refusal
from headrace.client.membership.classic_task_leader import PROTOCOL_NAME
from headrace.errors import ConfigError
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "OUR_PROTOCOLS",
    "CoordinatorOffer",
    "GroupProtocol",
    "ProtocolChoice",
    "StreamsProtocol",
    "choose_protocol",
    "parse_group_protocol",
]

StreamsProtocol = Literal["streams", "classic"]
GroupProtocol = Literal["auto", "streams", "classic"]

_CHOICES: Final[tuple[GroupProtocol, ...]] = get_args(GroupProtocol)
OUR_PROTOCOLS: Final = frozenset({PROTOCOL_NAME, ""})
"""Protocols of a classic group with members that run streams; a group that rebalances has the empty one."""
_NOT_THERE: Final = frozenset({ErrorCode.none, ErrorCode.group_id_not_found})


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOffer:
    """Answers of a group's coordinator.

    Attributes:
        has_heartbeat: Whether ApiVersions lists StreamsGroupHeartbeat and StreamsGroupDescribe.
        described: Code of StreamsGroupDescribe for the group; `none` if it was not asked.
        classic_members: Number of members that a classic group of this name has.
        classic_protocol: Protocol of that group; empty while it rebalances.
    """

    has_heartbeat: bool
    described: ErrorCode = ErrorCode.none
    classic_members: int = 0
    classic_protocol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolChoice:
    """The protocol, and the reason as a clause for logs and findings."""

    protocol: StreamsProtocol
    reason: str


def parse_group_protocol(given: str, *, member: str) -> GroupProtocol:
    """Return the value of `group.protocol`, in any case, as Kafka accepts it.

    Args:
        given: The value.
        member: The configured object, for the message: "a StreamsApp".

    Raises:
        ConfigError: `bad-value`.
    """
    value = given.strip().lower()
    for choice in _CHOICES:
        if value == choice:
            return choice
    raise ConfigError(
        "bad-value",
        f"Invalid group.protocol '{given}': expected {', '.join(_CHOICES)} for {member}.",
        "Remove the setting, or use headrace.Consumer for consumer groups."
        if value == "consumer"
        else "Remove the setting: auto takes streams groups where the cluster offers them, else a classic group.",
        key="group.protocol",
    )


def choose_protocol(wanted: GroupProtocol, offer: CoordinatorOffer, *, group_id: str) -> ProtocolChoice:
    """Return the protocol to join with.

    Raises:
        BrokerError: The coordinator refused to describe the group.
    """
    if wanted != "auto":
        return ProtocolChoice(protocol=wanted, reason=f"group.protocol is {wanted}")
    if not offer.has_heartbeat:
        reason = "the group's coordinator has no streams groups (they came with Apache Kafka 4.2)"
        return ProtocolChoice(protocol="classic", reason=reason)
    # ApiVersions lists the API also where it is turned off; only its answer shows that.
    if offer.described == ErrorCode.unsupported_version:
        reason = (
            "streams groups are turned off: the feature streams.version is 0, or "
            "group.coordinator.rebalance.protocols lacks streams"
        )
        return ProtocolChoice(protocol="classic", reason=reason)
    if offer.described not in _NOT_THERE:
        raise refusal(
            offer.described, f"to describe the group {group_id}", api="StreamsGroupDescribe", group_id=group_id
        )
    # Instances that run since before an upgrade of the brokers are members of a classic group. A streams heartbeat into
    # a classic group with members is refused, so an instance that is restarted now joins the same group.
    if offer.classic_members and offer.classic_protocol in OUR_PROTOCOLS:
        reason = f"the classic group {group_id} has {offer.classic_members} running members"
        return ProtocolChoice(protocol="classic", reason=reason)
    return ProtocolChoice(protocol="streams", reason="the group's coordinator offers streams groups (KIP-1071)")
