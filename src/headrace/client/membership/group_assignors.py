"""A classic member's assignors, and the encoding of their subscriptions and assignments.

- A member whose subscription cannot be decoded gets nothing; the others are not affected.
- Partitions that a faulty leader assigns without a subscription are ignored.
- An exception of an application's assignor becomes a UserCodeError.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from headrace.assignors.assignor import Assignment, Assignor, RebalanceProtocol, Subscription, TopicPartition
from headrace.assignors.consumer_protocol import (
    MalformedUserData,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.assignors.registry import common_protocol
from headrace.errors import UserCodeError
from headrace.protocol import messages as m

__all__ = ["GroupAssignors"]

Answer = TypeVar("Answer")


class GroupAssignors:
    """The assignors of one member, by name in order of preference."""

    def __init__(
        self, group_id: str, assignors: Sequence[Assignor], *, rack_id: str | None, notice: Callable[[str], None]
    ) -> None:
        """Args:
        group_id: The group, for messages.
        assignors: In order of preference.
        rack_id: The member's rack, if any.
        notice: Called with one sentence about each fault of another member.
        """
        self._group_id = group_id
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._rack_id = rack_id
        self._notice = notice
        self.are_cooperative = common_protocol(assignors) is RebalanceProtocol.COOPERATIVE

    def __contains__(self, name: str) -> bool:
        return name in self._assignors

    def protocols(
        self, topics: tuple[str, ...], owned: tuple[TopicPartition, ...], generation: int
    ) -> list[tuple[str, bytes]]:
        """Return (name, encoded subscription) of each assignor, for a join.

        Raises:
            UserCodeError: An assignor raised an exception.
        """

        def subscription(assignor: Assignor) -> bytes:
            return encode_subscription(
                Subscription(
                    topics=topics,
                    user_data=assignor.subscription_user_data(topics),
                    owned_partitions=owned,
                    generation_id=generation,
                    rack_id=self._rack_id,
                )
            )

        # Each assignor has a subscription of its own, because user data are: the coordinator votes for one protocol and
        # passes only its bytes to the leader.
        return [(name, self._ask(name, partial(subscription, each))) for name, each in self._assignors.items()]

    def members(self, joined: m.join_group_response.JoinGroupResponse) -> dict[str, Subscription]:
        """Decode the subscriptions of all members; one that cannot be decoded subscribes to nothing."""
        members: dict[str, Subscription] = {}
        for member in joined.members:
            try:
                members[member.member_id] = decode_subscription(
                    bytes(member.metadata), instance_id=member.group_instance_id
                )
            except MalformedUserData as error:
                self._notice(f"{self._group_id}: the subscription of {member.member_id} cannot be decoded: {error}")
                # Refusing the whole assignment was rejected: one faulty client would stop every group that it joins.
                members[member.member_id] = Subscription(topics=(), instance_id=member.group_instance_id)
        return members

    def divided(self, name: str, counts: Mapping[str, int], members: Mapping[str, Subscription]) -> dict[str, bytes]:
        """Assign partitions with the named assignor and return each member's encoded assignment.

        Raises:
            UserCodeError: The assignor raised an exception.
        """

        def divide() -> dict[str, bytes]:
            # Every member must be in the SyncGroup, also without partitions: the coordinator sends an empty assignment
            # to members that are missing, but Kafka's own leader lists them, and other clients rely on it.
            assigned = self._assignors[name].assign(counts, members)
            return {member_id: encode_assignment(assigned.get(member_id, Assignment())) for member_id in members}

        return self._ask(name, divide)

    def taken(self, name: str, data: bytes, topics: Collection[str], generation: int) -> tuple[TopicPartition, ...]:
        """Decode this member's assignment and pass it to its assignor.

        Returns:
            The partitions of subscribed topics; others are ignored and reported with `notice`.

        Raises:
            UserCodeError: The assignor raised an exception.
        """
        try:
            assignment = decode_assignment(data)
        except MalformedUserData as error:
            self._notice(f"{self._group_id}: the leader's assignment cannot be decoded: {error}")
            assignment = Assignment()
        # The assignor sees the assignment as the leader sent it, the application only what it subscribed to.
        given = self._subscribed(assignment, set(topics))
        self._ask(name, partial(self._assignors[name].on_assignment, assignment, generation))
        return given

    def _subscribed(self, assignment: Assignment, topics: set[str]) -> tuple[TopicPartition, ...]:
        # Kafka's Java client fails on such an assignment and leaves. Reading what was not subscribed to would be worse,
        # and leaving makes the same leader assign the same again; so it is ignored and reported.
        given = sorted(dict.fromkeys(assignment.partitions))
        kept = tuple(each for each in given if each[0] in topics and each[1] >= 0)
        if len(kept) < len(given):
            strange = next(each for each in given if each not in kept)
            self._notice(
                f"{self._group_id}: the leader assigned {strange[0]}-{strange[1]}, to which this member is not "
                f"subscribed; ignoring {len(given) - len(kept)} such partitions"
            )
        return kept

    def _ask(self, name: str, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except Exception as error:
            raise UserCodeError(
                "user-code",
                f"the assignor {name} of {self._group_id} raised {type(error).__name__}: {error}",
                "Fix the assignor: the group waits for a leader that can assign its partitions.",
            ) from error
