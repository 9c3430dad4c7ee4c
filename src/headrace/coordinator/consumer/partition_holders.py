"""Who has which partition now, assigned or still pending revocation: the index behind "revoke before reassigning".

Driven by replay. A release counts only for the holder itself, so records in an odd order cannot free another's
partition.
"""

from __future__ import annotations

from uuid import UUID

from headrace.coordinator.consumer.member import ConsumerGroupMember

__all__ = ["PartitionHolders"]


class PartitionHolders:
    """Partition → member id. Mutable: it is an index."""

    __slots__ = ("_of_topic",)

    def __init__(self) -> None:
        self._of_topic: dict[UUID, dict[int, str]] = {}

    def copy(self) -> PartitionHolders:
        other = PartitionHolders()
        other._of_topic = {topic_id: dict(holders) for topic_id, holders in self._of_topic.items()}
        return other

    def of_topic(self, topic_id: UUID) -> dict[int, str]:
        """To be looked at, not to be changed."""
        return self._of_topic.get(topic_id, {})

    def hold(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                self._of_topic.setdefault(topic_id, {}).update(dict.fromkeys(of_topic, member.member_id))

    def release(self, member: ConsumerGroupMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, of_topic in partitions.items():
                holders = self._of_topic.get(topic_id)
                if holders is None:
                    continue
                for partition in of_topic:
                    if holders.get(partition) == member.member_id:
                        del holders[partition]
                if not holders:
                    del self._of_topic[topic_id]
