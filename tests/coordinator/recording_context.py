"""A shard whose every effect becomes a line of text: replies, records in the order of the log, timers, topics, events.

`StreamsTranscript` and `ConsumerTranscript` execute the commands of `transcripts/streams` and `transcripts/consumer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any
from uuid import UUID

from tests.coordinator.coordinator_context import STATELESS, CoordinatorContext, Outcome, subtopology, topology
from tests.harness.transcripts import Command

from headrace.client.membership.assignment import StatusCode
from headrace.coordinator.consumer.member import MemberState as ConsumerMemberState
from headrace.coordinator.records.schemas import (
    CurrentTaskIds,
    CurrentTopicPartitions,
    OffsetCommitKey,
    StreamsGroupCurrentMemberAssignmentValue,
    TaskIds,
    TopicPartitions,
)
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult, Reply
from headrace.coordinator.streams.member import MemberState as StreamsMemberState
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import consumer_group_heartbeat_request as c
from headrace.protocol.messages import delete_groups_response, offset_commit_response
from headrace.protocol.messages import streams_group_heartbeat_request as m

__all__ = ["ConsumerTranscript", "RecordingContext", "StreamsTranscript"]

# Values that no story is about: constants of the context, and hashes.
HIDDEN = {"client_id", "client_host", "metadata_hash", "last_assignment_configs"}
REBALANCE_TIMEOUT_MS = 10_000


class RecordingContext(CoordinatorContext):
    """Mutable: `lines` has the effects since it was last emptied."""

    def __init__(self, topics: dict[str, int], settings: dict[str, Any]) -> None:
        self.lines: list[str] = []
        super().__init__(topics=topics, settings=settings)

    def apply(self, result: CoordinatorResult) -> Outcome:
        outcome = super().apply(result)
        self.lines += [self.reply_line(each) for each in result.replies]
        self.lines += [f"append  {self.record_text(each)}" for each in result.records]
        for timer in result.timers:
            name = f"{timer.key.kind} {timer.key.member_id}".strip()
            if isinstance(timer, CancelTimer):
                self.lines.append(f"cancel  {name}")
            else:
                self.lines.append(f"timer   {name} in {timer.deadline_ms - self.now_ms} ms")
        self.lines += [
            f"create  topic {each.name} with {each.partitions} partitions" for each in result.topics_to_create
        ]
        for event in result.events:
            details = ", ".join(f"{key} {value}" for key, value in event.details)
            self.lines.append(f"event   {event.name}: {details}" if details else f"event   {event.name}")
        return outcome

    def consumer_heartbeat(self, request: c.ConsumerGroupHeartbeatRequest) -> Outcome:
        context = self.context(api_version=1)
        return self.apply(self.shard.consumer_group_heartbeat(request, context, now_ms=self.now_ms))

    def topic_name(self, topic_id: UUID) -> str:
        """The name of a topic, also of one that is gone, in which case it is marked."""
        names = {each.topic_id: name for name, each in self.image.topics.items()}
        return names.get(topic_id, f"deleted-{topic_id.int & 0xFF}")

    # Text.

    def reply_line(self, reply: Reply) -> str:
        return f"reply   {self.reply_text(reply.response)}"

    def reply_text(self, response: Any) -> str:
        if hasattr(response, "assignment"):
            return self._consumer_reply_text(response)
        if isinstance(response, offset_commit_response.OffsetCommitResponse):
            found = ((each.name, partition) for each in response.topics for partition in each.partitions)
            return ", ".join(f"{name}-{each.partition_index} {each.error_code.name}" for name, each in found)
        if isinstance(response, delete_groups_response.DeleteGroupsResponse):
            return ", ".join(f"{each.group_id} {each.error_code.name}" for each in response.results)
        parts = [f"epoch {response.member_epoch}"]
        for role in ("active", "standby", "warmup"):
            tasks = getattr(response, f"{role}_tasks")
            if tasks or (tasks is not None and role == "active"):
                names = [f"{each.subtopology_id}_{index}" for each in tasks for index in each.partitions]
                parts.append(f"{role} tasks {' '.join(names) or 'none'}")
        parts += [
            f"status {StatusCode(int(each.status_code)).name} ({each.status_detail})" for each in response.status or ()
        ]
        return ", ".join(parts)

    def _consumer_reply_text(self, response: Any) -> str:
        parts = [f"epoch {response.member_epoch}"]
        if response.assignment is not None:
            topics = {self.topic_name(each.topic_id): each.partitions for each in response.assignment.topic_partitions}
            names = [f"{name}-{index}" for name in sorted(topics) for index in topics[name]]
            parts.append(f"partitions {' '.join(names) or 'none'}")
        return ", ".join(parts)

    def record_text(self, record: CoordinatorRecord) -> str:
        name = type(record.key).__name__.removesuffix("Key")
        subject = getattr(record.key, "member_id", "") or getattr(record.key, "regular_expression", "")
        if isinstance(record.key, OffsetCommitKey):
            subject = f"{record.key.topic}-{record.key.partition}"
        head = f"{name} {subject}".strip()
        return f"{head}: tombstone" if record.value is None else f"{head}: {self.value_text(record.value)}"

    def value_text(self, value: Any) -> str:
        if isinstance(value, TaskIds | CurrentTaskIds):
            return self._partitions_text(f"{value.subtopology_id}_", value)
        if isinstance(value, TopicPartitions | CurrentTopicPartitions):
            return self._partitions_text(f"{self.topic_name(value.topic_id)}-", value)
        if is_dataclass(value):
            defaults = {each.name: each.default for each in fields(value) if each.default is not MISSING}
            shown = {each.name: getattr(value, each.name) for each in fields(value) if each.name not in HIDDEN}
            texts = [
                f"{name}={self._field_text(value, name)}"
                for name, found in shown.items()
                if found != "" and (name not in defaults or found != defaults[name])
            ]
            return ", ".join(texts) or "empty"
        if isinstance(value, tuple):
            return " ".join(
                f"[{self.value_text(each)}]" if is_nested(each) else self.value_text(each) for each in value
            )
        return str(value)

    def _field_text(self, value: Any, name: str) -> str:
        found = getattr(value, name)
        if name != "state":
            return self.value_text(found)
        is_streams = isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
        return StreamsMemberState(found).name if is_streams else ConsumerMemberState(found).name

    @staticmethod
    def _partitions_text(prefix: str, value: Any) -> str:
        epochs = getattr(value, "assignment_epochs", None)
        if epochs is None:
            return " ".join(f"{prefix}{each}" for each in value.partitions)
        return " ".join(f"{prefix}{each}@{epoch}" for each, epoch in zip(value.partitions, epochs, strict=True))


def is_nested(value: Any) -> bool:
    """Return whether a value of a list needs brackets: its text has several fields."""
    return is_dataclass(value) and not isinstance(
        value, TaskIds | CurrentTaskIds | TopicPartitions | CurrentTopicPartitions
    )


def numbers(options: dict[str, str]) -> dict[str, int]:
    return {name: int(value) for name, value in options.items()}


class GroupTranscript:
    """Executes the commands that all types of groups have. Mutable."""

    def __init__(self) -> None:
        self._context: RecordingContext | None = None
        self.verbs: dict[str, Callable[[Command], object]] = {
            "coordinator": self.coordinator,
            "topics": lambda command: self.context.set_topics(numbers(command.options)),
            "settings": lambda command: self.context.set_group_settings(command.options),
            "sleep": lambda command: self.context.sleep(int(command.word(0))),
            "restart": lambda _: self.context.restart(),
            "commit": self.commit,
            "delete": lambda _: self.context.delete_groups("g"),
            "state": lambda _: self.context.lines.append(self.state()),
        }

    @property
    def context(self) -> RecordingContext:
        assert self._context is not None, "a transcript begins with `coordinator`"
        return self._context

    def run(self, command: Command) -> list[str]:
        """Execute a command; a refusal is output too."""
        assert command.verb in self.verbs, f"unknown command: {command.verb}"
        if self._context is not None:
            self._context.lines = []
        try:
            self.verbs[command.verb](command)
        except CoordinatorError as error:
            return [f"refused {error.code.name.upper()}: {error.message}"]
        return self.context.lines

    def coordinator(self, command: Command) -> None:
        settings = {name: value for name, value in command.options.items() if "." in name}
        topics = numbers({name: count for name, count in command.options.items() if "." not in name})
        self._context = RecordingContext(topics, {"group.consumer.assignment.interval.ms": 0, **settings})

    def commit(self, command: Command) -> None:
        offsets = {
            (name.rpartition("-")[0], int(name.rpartition("-")[2])): int(offset)
            for name, offset in command.options.items()
        }
        self.context.commit(offsets, self.member_id(command), int(command.words[1]) if len(command.words) > 1 else -1)

    def member_id(self, command: Command) -> str:
        """The member that sends a request, "" for none."""
        return command.words[0] if command.words else ""

    def state(self) -> str:
        raise NotImplementedError


class StreamsTranscript(GroupTranscript):
    """Commands about a streams group (KIP-1071)."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs |= {"join": self.join, "heartbeat": self.heartbeat, "leave": self.leave}

    def join(self, command: Command) -> None:
        self.context.join(
            command.word(0), rebalance_timeout_ms=REBALANCE_TIMEOUT_MS, **{"topology": STATELESS, **member(command)}
        )

    def heartbeat(self, command: Command) -> None:
        self.context.heartbeat(
            command.word(0), int(command.word(1)), active=owned_tasks(command, "owns"), **member(command)
        )

    def leave(self, command: Command) -> None:
        epoch = int(command.words[1]) if len(command.words) > 1 else -1
        self.context.heartbeat(command.word(0), epoch, **member(command))

    def state(self) -> str:
        group = self.context.describe()
        members = ", ".join(f"{each.member_id} at epoch {each.member_epoch}" for each in group.members)
        return f"group   {group.group_state}, epoch {group.group_epoch}, {members or 'no members'}"


class ConsumerTranscript(GroupTranscript):
    """Commands about a consumer group (KIP-848)."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs |= {"join": self.join, "heartbeat": self.heartbeat, "leave": self.leave}

    def join(self, command: Command) -> None:
        self.beat(command, 0, owned=(), rebalance_timeout=from_ms(REBALANCE_TIMEOUT_MS))

    def heartbeat(self, command: Command) -> None:
        self.beat(command, int(command.word(1)), owned=owned_partitions(self.context, command))

    def leave(self, command: Command) -> None:
        self.beat(command, int(command.words[1]) if len(command.words) > 1 else -1, owned=None)

    def beat(self, command: Command, epoch: int, *, owned: Any, **given: Any) -> None:
        names = command.options.get("topics")
        request = c.ConsumerGroupHeartbeatRequest(
            **{
                "group_id": "g",
                "member_id": command.word(0),
                "member_epoch": epoch,
                "instance_id": command.options.get("instance"),
                "subscribed_topic_names": None if names is None else tuple(filter(None, names.split(","))),
                "subscribed_topic_regex": command.options.get("regex"),
                "server_assignor": command.options.get("assignor"),
                "rebalance_timeout": from_ms(-1),
                "topic_partitions": owned,
                **given,
            }
        )
        self.context.consumer_heartbeat(request)

    def state(self) -> str:
        [group] = self.context.shard.consumer_group_describe(["g"], self.context.context())
        members = ", ".join(f"{each.member_id} at epoch {each.member_epoch}" for each in group.members)
        return f"group   {group.group_state}, epoch {group.group_epoch}, {members or 'no members'}"


def member(command: Command) -> dict[str, Any]:
    """Fields of a streams heartbeat: instance id, topology, standby tasks, shutdown."""
    given: dict[str, Any] = {}
    if "instance" in command.options:
        given["instance_id"] = command.options["instance"]
    if "process" in command.options:
        given["process_id"] = command.options["process"]
    if "sources" in command.options:
        given["topology"] = topology_of(command)
    if "standby" in command.options:
        given["standby"] = owned_tasks(command, "standby")
    if "shutdown" in command.words:
        given["shutdown"] = True
    return given


def topology_of(command: Command) -> m.Topology:
    """`sources=in changelog=cl topology-epoch=1`: one subtopology."""
    changelogs = [name for name in [command.options.get("changelog")] if name]
    one = subtopology(sources=command.options["sources"].split(","), changelogs=changelogs)
    return topology(one, epoch=int(command.options.get("topology-epoch", "0")))


def owned_tasks(command: Command, name: str) -> dict[str, list[int]] | None:
    """Tasks of an option as {subtopology: partitions}; None if it is not given."""
    if name not in command.options:
        return None
    tasks: dict[str, list[int]] = {}
    for task in filter(None, command.options[name].split(",")):
        tasks.setdefault(task.partition("_")[0], []).append(int(task.partition("_")[2]))
    return tasks


def owned_partitions(context: RecordingContext, command: Command) -> tuple[c.TopicPartitions, ...] | None:
    """`owns=in-0,in-1`; None if it is not given."""
    if "owns" not in command.options:
        return None
    topics: dict[str, list[int]] = {}
    for partition in filter(None, command.options["owns"].split(",")):
        topics.setdefault(partition.rpartition("-")[0], []).append(int(partition.rpartition("-")[2]))
    return tuple(
        c.TopicPartitions(topic_id=context.image.topics[name].topic_id, partitions=tuple(partitions))  # type: ignore[arg-type]
        for name, partitions in topics.items()
    )
