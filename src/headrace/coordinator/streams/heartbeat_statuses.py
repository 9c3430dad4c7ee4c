"""The status list of a heartbeat's answer: what is wrong, or still to come, without being an error. KIP-1071."""

from __future__ import annotations

from headrace.coordinator.records.schemas import StreamsGroupMemberMetadataValue
from headrace.coordinator.streams.topics.configured_topology import ConfiguredTopology
from headrace.coordinator.streams.topics.topic_status import StatusCode, TopicStatus

__all__ = ["missing_client_tags", "shutdown_requested", "statuses"]

FIRST_VERSION_WITH_TAGS = 1


def statuses(
    member: StreamsGroupMemberMetadataValue,
    configured: ConfiguredTopology,
    *,
    delay: TopicStatus | None,
    shutdown_requested_by: str | None,
    required_tags: tuple[str, ...],
    api_version: int,
) -> list[TopicStatus]:
    """In Kafka's order. `configured`: the group's topology, which may be newer than the member's. Missing client tags
    are told from heartbeat v1 on: clients of v0 do not know that status."""
    found = []
    if member.topology_epoch < configured.epoch:
        detail = (
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{configured.epoch}."
        )
        found.append(TopicStatus(code=StatusCode.STALE_TOPOLOGY, detail=detail))
    found.extend(status for status in (configured.unread, delay, configured.status) if status is not None)
    if shutdown_requested_by is not None:
        found.append(shutdown_requested(shutdown_requested_by))
    if api_version >= FIRST_VERSION_WITH_TAGS:
        found.extend(missing_client_tags(member, required_tags))
    return found


def shutdown_requested(member_id: str) -> TopicStatus:
    detail = (
        f"Streams group member {member_id} encountered a fatal error and requested a shutdown for the entire "
        "application."
    )
    return TopicStatus(code=StatusCode.SHUTDOWN_APPLICATION, detail=detail)


def missing_client_tags(
    member: StreamsGroupMemberMetadataValue, required_tags: tuple[str, ...]
) -> tuple[TopicStatus, ...]:
    """Standbys are spread by these tags; a member without them cannot be taken into account."""
    tags = dict(member.client_tags)
    missing = [tag for tag in required_tags if tag not in tags]
    if not missing:
        return ()
    detail = (
        f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing)}]. Configure them via "
        "'client.tag.<tagKey>' in your Streams config."
    )
    return (TopicStatus(code=StatusCode.MISSING_CLIENT_TAGS, detail=detail),)
