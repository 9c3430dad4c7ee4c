"""Commands of `transcripts/classic`: classic groups, whose requests wait for each other, and their conversions.

A client is named by its client id. Its member id is the one that its last JoinGroup was answered with ("m1-1": the
first id that a JoinGroup of m1 got), or the one that the command names by `id=`. A reply names the request it answers,
because JoinGroup and SyncGroup are answered later, by the effects of other requests or of timers.
"""

from __future__ import annotations

from typing import Any

from tests.coordinator.recording_context import ConsumerTranscript, RecordingContext, numbers
from tests.harness.transcripts import Command

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.coordinator.classic.group import ClassicGroup
from headrace.coordinator.records.schemas import GroupMetadataValue
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import Reply
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import (
    heartbeat_request,
    heartbeat_response,
    join_group_request,
    join_group_response,
    leave_group_request,
    leave_group_response,
    sync_group_request,
    sync_group_response,
)

__all__ = ["ClassicTranscript"]

SESSION_MS = 10_000
REBALANCE_MS = 20_000
CONSUMER_VERBS = ("join", "heartbeat", "leave")


class ClassicRecordingContext(RecordingContext):
    """Mutable: `ids` has each client's member id."""

    def __init__(self, topics: dict[str, int], settings: dict[str, Any]) -> None:
        self.ids: dict[str, str] = {}
        self.current = ("", "")  # the client and the verb of the command that runs
        self._requests: list[tuple[str, str]] = []  # the same of each request, by its token
        super().__init__(topics, settings)

    def context(self, *, api_version: int = 0, host: str = "/127.0.0.1") -> RequestContext:
        self._requests.append(self.current)
        token = len(self._requests) - 1
        return RequestContext(token=token, client_id=self.current[0], client_host=host, api_version=api_version)

    def fresh_id(self) -> str:
        return str(self._requests.count(self.current))

    def reply_line(self, reply: Reply) -> str:
        client, verb = self._requests[reply.token]
        response = reply.response
        if isinstance(response, join_group_response.JoinGroupResponse) and is_given_id(response):
            self.ids[client] = response.member_id
        text = self.reply_text(response)
        return f"reply   to {client}'s {verb}: {text}" if client else f"reply   {text}"

    def reply_text(self, response: Any) -> str:
        if isinstance(response, join_group_response.JoinGroupResponse):
            return self._join_text(response)
        if isinstance(response, sync_group_response.SyncGroupResponse):
            return failed(response) or assignment_text(response.assignment)
        if isinstance(response, heartbeat_response.HeartbeatResponse):
            return failed(response) or "none"
        if isinstance(response, leave_group_response.LeaveGroupResponse):
            return ", ".join(f"{each.member_id} {each.error_code.name}" for each in response.members)
        return super().reply_text(response)

    @staticmethod
    def _join_text(response: join_group_response.JoinGroupResponse) -> str:
        if refused := failed(response):
            return f"{refused}, member id {response.member_id}" if is_given_id(response) else refused
        parts = [
            f"generation {response.generation_id}",
            f"member id {response.member_id}",
            f"assignor {response.protocol_name}",
            f"leader {response.leader or 'none'}",
        ]
        if response.members:
            parts.append(f"members {' '.join(each.member_id for each in response.members)}")
        return ", ".join(parts) + (", assignment skipped" if response.skip_assignment else "")

    def value_text(self, value: Any) -> str:
        if isinstance(value, bytes):
            return f"{len(value)} bytes"
        if not isinstance(value, GroupMetadataValue):
            return super().value_text(value)
        head = f"generation={value.generation}, assignor={value.protocol}, leader={value.leader}, members="
        return head + " ".join(
            f"[{each.member_id}{f', instance={each.group_instance_id}' if each.group_instance_id else ''}, "
            f"session={each.session_timeout_ms}, rebalance={each.rebalance_timeout_ms}, "
            f"topics={' '.join(decode_subscription(each.subscription).topics)}, "
            f"assignment={assignment_text(each.assignment)}]"
            for each in value.members
        )


class ClassicTranscript(ConsumerTranscript):
    """`join`, `sync`, `heartbeat`, `leave` are the classic requests; those of KIP-848 begin with `consumer-`."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs |= {f"consumer-{verb}": self.verbs[verb] for verb in CONSUMER_VERBS}
        self.verbs |= {
            "join": self.join_group,
            "sync": self.sync_group,
            "heartbeat": self.heartbeat_group,
            "leave": self.leave_group,
        }

    def run(self, command: Command) -> list[str]:
        if self._context is not None:
            self.context.current = (command.words[0] if command.words else "", command.verb)
        return super().run(command)

    @property
    def context(self) -> ClassicRecordingContext:
        context = super().context
        assert isinstance(context, ClassicRecordingContext)
        return context

    def coordinator(self, command: Command) -> None:
        settings = {name: value for name, value in command.options.items() if "." in name}
        topics = numbers({name: count for name, count in command.options.items() if "." not in name})
        self._context = ClassicRecordingContext(topics, {"group.consumer.assignment.interval.ms": 0, **settings})

    def join_group(self, command: Command) -> None:
        options, j = command.options, join_group_request
        subscription = Subscription(topics=tuple(options.get("topics", "in").split(",")))
        request = j.JoinGroupRequest(
            group_id="g",  # type: ignore[arg-type]
            session_timeout=from_ms(int(options.get("session", SESSION_MS))),
            rebalance_timeout=from_ms(int(options.get("rebalance", REBALANCE_MS))),
            member_id=self.member_id(command),
            group_instance_id=options.get("instance"),
            protocol_type="consumer",
            protocols=tuple(
                j.JoinGroupRequestProtocol(name=name, metadata=encode_subscription(subscription))
                for name in options.get("assignors", "range").split(",")
            ),
        )
        context = self.context.context(api_version=int(options.get("version", 9)))
        result = self.context.shard.join_group(
            request, context, fresh_id=self.context.fresh_id(), now_ms=self.context.now_ms
        )
        self.context.apply(result)

    def sync_group(self, command: Command) -> None:
        s = sync_group_request
        shares = {
            self.context.ids.get(client, client): assignment_of(text)
            for client, text in command.options.items()
            if client not in ("id", "instance")
        }
        request = s.SyncGroupRequest(
            group_id="g",  # type: ignore[arg-type]
            generation_id=int(command.word(1)),  # type: ignore[arg-type]
            member_id=self.member_id(command),
            group_instance_id=command.options.get("instance"),
            assignments=tuple(
                s.SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(share))
                for member_id, share in shares.items()
            ),
        )
        context = self.context.context(api_version=5)
        self.context.apply(self.context.shard.sync_group(request, context, now_ms=self.context.now_ms))

    def heartbeat_group(self, command: Command) -> None:
        request = heartbeat_request.HeartbeatRequest(
            group_id="g",  # type: ignore[arg-type]
            generation_id=int(command.word(1)),  # type: ignore[arg-type]
            member_id=self.member_id(command),
            group_instance_id=command.options.get("instance"),
        )
        context = self.context.context(api_version=4)
        self.context.apply(self.context.shard.heartbeat(request, context, now_ms=self.context.now_ms))

    def leave_group(self, command: Command) -> None:
        identity = leave_group_request.MemberIdentity(
            member_id=self.member_id(command), group_instance_id=command.options.get("instance")
        )
        request = leave_group_request.LeaveGroupRequest(group_id="g", members=(identity,))  # type: ignore[arg-type]
        context = self.context.context(api_version=5)
        self.context.apply(self.context.shard.leave_group(request, context, now_ms=self.context.now_ms))

    def state(self) -> str:
        if not isinstance(self.context.shard.group("g"), ClassicGroup):
            return super().state()
        [group] = self.context.shard.describe_groups(["g"], self.context.context())
        members = " ".join(each.member_id for each in group.members)
        return f"group   classic, {group.group_state}, members {members or 'none'}"

    def member_id(self, command: Command) -> str:
        client = command.words[0] if command.words else ""
        return command.options.get("id", self.context.ids.get(client, ""))


def is_given_id(response: join_group_response.JoinGroupResponse) -> bool:
    """Whether the member id of a reply is the sender's from now on."""
    return response.error_code.name in ("none", "member_id_required")


def failed(response: Any) -> str:
    return "" if response.error_code.name == "none" else str(response.error_code.name.upper())


def assignment_of(text: str) -> Assignment:
    """`in-0,in-1`."""
    names = [each.rpartition("-") for each in text.split(",") if each]
    return Assignment(partitions=tuple((topic, int(number)) for topic, _, number in names))


def assignment_text(encoded: bytes) -> str:
    if not encoded:
        return "none"
    return " ".join(f"{topic}-{number}" for topic, number in decode_assignment(encoded).partitions) or "no partitions"
