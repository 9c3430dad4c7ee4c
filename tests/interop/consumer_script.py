"""A script of requests for a consumer group (KIP-848), played to any broker; see `heartbeat_script`, which it extends.

Partitions are told by the topic's name. Members are single letters: Kafka's assignors take members in the order of a
Java hash map, which is then that of the letters.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.harness.polling import wait_until
from tests.interop.heartbeat_script import Script

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.kio_units import from_ms, to_ms

__all__ = ["MINE", "SCENARIOS", "ConsumerScenario", "ConsumerScript", "scenario"]

Owned = Mapping[str, Iterable[int]]
MINE: Owned = {"mine": ()}
_h = m.consumer_group_heartbeat_request


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerScenario:
    name: str
    play: Callable[[ConsumerScript], None]
    topics: Mapping[str, int]
    settings: Mapping[str, int | str] = field(default_factory=dict)


SCENARIOS: dict[str, ConsumerScenario] = {}


def scenario(
    topics: Mapping[str, int], **settings: int | str
) -> Callable[[Callable[[ConsumerScript], None]], Callable[[ConsumerScript], None]]:
    """Registers a script under its function's name. Settings without their `consumer.` and with `_` for `.`; there is
    no assignment interval unless it is named."""

    def add(play: Callable[[ConsumerScript], None]) -> Callable[[ConsumerScript], None]:
        name = play.__name__.replace("_", "-")
        assert name not in SCENARIOS, f"two scenarios are called {name}"
        given = {"assignment_interval_ms": 0, **settings}
        named = {f"consumer.{key.replace('_', '.')}": value for key, value in given.items()}
        SCENARIOS[name] = ConsumerScenario(name=name, play=play, topics=topics, settings=named)
        return play

    return add


class ConsumerScript(Script):
    """Mutable, as `Script`: members' epochs, and the partitions that they were told."""

    def __init__(self, port: int, scenario: str, token: str) -> None:
        super().__init__(port, scenario, token)
        self.partitions: dict[str, dict[str, tuple[int, ...]]] = {}
        self.names: dict[uuid.UUID, str] = {}

    def learn_topics(self, *names: str) -> None:
        """The ids of topics that exist."""
        r = m.metadata_request
        wanted = tuple(r.MetadataRequestTopic(topic_id=None, name=self.name(name)) for name in names)
        request = r.MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self._connection.call(ApiKey.METADATA, 12, request)
        for each in answer.topics:
            if each.error_code is ErrorCode.none:
                self.names[each.topic_id] = str(each.name).removeprefix(self._token)

    def regex(self, pattern: str) -> str:
        """Behind the token in the names of this script's topics."""
        return self._token.replace(".", "\\.") + pattern

    # Heartbeats.

    def join(self, step: str, member: str, *names: str, **fields: Any) -> Any:  # type: ignore[override]
        given = None if "regex" in fields and not names else tuple(map(self.name, names))
        request: dict[str, Any] = {"epoch": 0, "names": given, "owned": {}, "rebalance_timeout_ms": 60_000}
        return self.beat(step, member, **{**request, **fields})

    def beat(self, step: str, member: str, **fields: Any) -> Any:
        """`owned`: None says nothing, MINE what it has, else partitions by topic; `epoch` defaults to its own."""
        answer = self._consumer_beat(member, **fields)
        self._record(step, self._heartbeat_told(answer, member))
        return answer

    def beat_until(self, step: str, member: str, condition: Callable[[Any], bool], **fields: Any) -> None:
        def beat() -> Any:
            answer = self._consumer_beat(member, **fields)
            return answer if condition(answer) else None

        told = self._heartbeat_told(wait_until(beat, step), member)
        self._record(step, {**told, "assignment": self.partitions[member]})

    def beat_quietly(self, member: str) -> None:
        self._consumer_beat(member)

    def count(self, member: str) -> int:
        return sum(map(len, self.partitions.get(member, {}).values()))

    def streams_join(self, step: str, member: str, *names: str) -> None:
        """A member of a streams group, under the same group id."""
        answer = self._heartbeat(
            member, epoch=0, topology=self.source(*names), owned={}, rebalance_timeout_ms=60_000, process=member
        )
        self._record(step, {"error": kafka_name(answer.error_code)})

    def _consumer_beat(
        self,
        member: str,
        *,
        epoch: int | None = None,
        names: tuple[str, ...] | None = None,
        regex: str | None = None,
        owned: Owned | None = None,
        rebalance_timeout_ms: int = -1,
        version: int = 1,
        **fields: Any,
    ) -> Any:
        if owned is MINE:
            owned = self.partitions.get(member, {})
        ids = {name: topic_id for topic_id, name in self.names.items()}
        request = _h.ConsumerGroupHeartbeatRequest(
            **{
                "group_id": self.group_id,
                "member_id": member,
                "member_epoch": self.epochs.get(member, 0) if epoch is None else epoch,
                "rebalance_timeout": from_ms(rebalance_timeout_ms),
                "subscribed_topic_names": names,
                "subscribed_topic_regex": regex,
                "topic_partitions": None
                if owned is None
                else tuple(
                    _h.TopicPartitions(topic_id=ids[name], partitions=tuple(owned[name])) for name in sorted(owned)
                ),
                **fields,
            }
        )
        answer = self._connection.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
        if answer.error_code is ErrorCode.none and answer.member_epoch >= 0:
            self.epochs[member] = answer.member_epoch
            if answer.assignment is not None:
                self.partitions[member] = self._by_name(answer.assignment)
        return answer

    def _heartbeat_told(self, answer: Any, member: str) -> dict[str, object]:
        if answer.error_code is not ErrorCode.none:
            return {"error": kafka_name(answer.error_code), "message": answer.error_message}
        made = not member and bool(answer.member_id)
        return {
            "error": "NONE",
            "message": answer.error_message,
            "member": "made by the broker" if made else answer.member_id,
            "epoch": answer.member_epoch,
            "interval": to_ms(answer.heartbeat_interval),
            "assignment": None if answer.assignment is None else self._by_name(answer.assignment),
        }

    def _by_name(self, assignment: Any) -> dict[str, tuple[int, ...]]:
        found = {self._topic(each): tuple(sorted(each.partitions)) for each in assignment.topic_partitions}
        return {name: found[name] for name in sorted(found)}

    def _topic(self, each: Any) -> str:
        return self.names.get(each.topic_id, "a topic nobody told of")

    # Looking.

    def _described(self, group_id: str | None, version: int = 1) -> dict[str, Any]:
        request = m.consumer_group_describe_request.ConsumerGroupDescribeRequest(
            group_ids=(group_id or self.group_id,), include_authorized_operations=False
        )
        (group,) = self._connection.call(ApiKey.CONSUMER_GROUP_DESCRIBE, version, request).groups
        seen: dict[str, Any] = {
            "error": kafka_name(group.error_code),
            "message": group.error_message,
            "state": group.group_state,
            "group epoch": group.group_epoch,
            "assignment epoch": group.assignment_epoch,
            "assignor": group.assignor_name,
            "members": sorted(member.member_id for member in group.members),
        }
        for member in group.members:
            told = {
                "epoch": member.member_epoch,
                "instance": member.instance_id,
                "rack": member.rack_id,
                "client": (member.client_id, member.client_host),
                "names": sorted(member.subscribed_topic_names),
                "regex": (member.subscribed_topic_regex or "").replace(self.regex(""), ""),
                "type": member.member_type,
                "has": self._by_name(member.assignment),
                "target": self._by_name(member.target_assignment),
            }
            seen.update((f"{member.member_id}: {name}", value) for name, value in told.items())
        return seen
