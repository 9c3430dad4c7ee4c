"""Commands of `transcripts/`: members of groups as text, with the application and the coordinator played by hand.

A member is polled after each command, as its runner does. Every effect becomes a line: requests, events for the
application, changes of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from tests.client.membership.group_script import assigned, beaten, found, joined, metadata, synced, topic_id
from tests.client.membership.scripted_coordinator import ScriptedCoordinator
from tests.harness.transcripts import Command

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.assignors.registry import parse_assignors
from headrace.client.membership import events as e
from headrace.client.membership.assignment import AssignmentSnapshot, StatusCode
from headrace.client.membership.classic_membership import ClassicMembership
from headrace.client.membership.consumer_membership import ConsumerMembership
from headrace.client.membership.group_events import SubscribedTopics
from headrace.client.membership.target_assignment_poller import TargetAssignment
from headrace.errors import HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms, to_ms

__all__ = ["ClassicMemberTranscript", "ConsumerMemberTranscript", "StreamsMemberTranscript"]

START_MS = 1_000
HIDDEN = {"number", "message", "fix"}
TOPICS = ("flights", "delays")


class MemberTranscript:
    """Commands that all kinds of members have. Mutable: the member, the clock, the lines of the present command."""

    def __init__(self) -> None:
        self.member: Any = None
        self.now_ms = START_MS
        self.lines: list[str] = []
        self.last_event: Any = None
        self._state: Any = None
        self.verbs: dict[str, Callable[[Command], object]] = {
            "member": self.create,
            "answer": lambda command: self.member.on_response(self.response(command), self.now_ms),
            "fail": lambda _: self.member.on_failure(self.now_ms),
            "sleep": lambda command: self.sleep(int(command.word(0))),
            "steady": lambda command: self.steady(int(command.word(0))),
            "acknowledge": self.acknowledge,
            "leave": self.leave,
        }

    def run(self, command: Command) -> list[str]:
        assert command.verb in self.verbs, f"unknown command: {command.verb}"
        self.lines = []
        self.verbs[command.verb](command)
        self.observe()
        self.poll()
        return self.lines

    def sleep(self, duration_ms: int) -> None:
        """Move the clock, with a poll whenever the member asked for one."""
        start_ms, until_ms = self.now_ms, self.now_ms + duration_ms
        while True:
            next_ms = self.poll(f", after {self.now_ms - start_ms} ms")
            if self.now_ms >= until_ms:
                return
            self.now_ms = min(next_ms, until_ms) if next_ms > self.now_ms else until_ms

    def steady(self, duration_ms: int) -> None:
        """Move the clock, with every heartbeat answered at once, up to a request of another kind."""
        until_ms, beats = self.now_ms + duration_ms, 0
        while self.now_ms < until_ms:
            result = self.member.poll(self.now_ms)
            if not result.requests:
                self.now_ms = min(result.next_poll_ms, until_ms)
            elif "Heartbeat" in type(result.requests[0].request).__name__:
                beats += 1
                self.member.on_response(self.steady_answer(), self.now_ms)
            else:
                self.lines += [f"send    {self.request_text(each.request)}" for each in result.requests]
                break
        self.lines.insert(0, f"send    {beats} heartbeats")

    def poll(self, when: str = "") -> int:
        result = self.member.poll(self.now_ms)
        self.lines += [f"send    {self.request_text(each.request)}{when}" for each in result.requests]
        self.observe()
        return int(result.next_poll_ms) if not result.requests else self.now_ms + 1

    def observe(self) -> None:
        for event in self.member.take_events():
            self.last_event = event
            self.lines.append(f"event   {event_text(event)}")
        if self.member.state is not self._state:
            before = "" if self._state is None else f"{self._state.value} → "
            self.lines.append(f"state   {before}{self.member.state.value}")
            self._state = self.member.state

    # By kind.

    def create(self, command: Command) -> None:
        raise NotImplementedError

    def acknowledge(self, command: Command) -> None:
        self.member.acknowledge(self.last_event.number, self.now_ms)

    def leave(self, command: Command) -> None:
        self.member.leave(self.now_ms, for_good=True if "for-good" in command.words else None)

    def subscribe(self, command: Command) -> None:
        names = tuple(command.word(0).split(",")) if command.words else ()
        self.member.subscribe(SubscribedTopics(names=names, broker_regex=command.options.get("regex")), self.now_ms)

    def response(self, command: Command) -> object:
        """The answer that a command describes: its first word is the API, `error=` an error code."""
        code = ErrorCode[command.options.get("error", "none").lower()]
        match command.word(0):
            case "coordinator":
                return found(code)
            case "topics":
                return metadata({name: int(count) for name, count in command.options.items()})
        return self.own_response(command, code)

    def own_response(self, command: Command, code: ErrorCode) -> object:
        raise NotImplementedError

    def request_text(self, request: Any) -> str:
        name = type(request).__name__.removesuffix("Request")
        match request:
            case m.find_coordinator_request.FindCoordinatorRequest():
                return name
            case m.metadata_request.MetadataRequest():
                asked = [each.name or topic_name(each.topic_id) for each in request.topics or ()]
                return f"{name}: {' '.join(sorted(asked)) or 'all topics'}"
        return f"{name}: {', '.join(self.own_request(request))}"

    def steady_answer(self) -> object:
        """An answer to a heartbeat that changes nothing."""
        return self.response(Command("answer", ("heartbeat",)))

    def own_request(self, request: Any) -> list[str]:
        raise NotImplementedError


class ClassicMemberTranscript(MemberTranscript):
    """Commands of a member of a classic group."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs["subscribe"] = self.subscribe

    def create(self, command: Command) -> None:
        strategy = command.options.get("assignors", "range").split(",")
        self.member = ClassicMembership(
            "g", parse_assignors(strategy), chance=lambda: 0.0, instance_id=command.options.get("instance")
        )

    def own_response(self, command: Command, code: ErrorCode) -> object:
        options = command.options
        match command.word(0):
            case "joined":
                members = {
                    name: encode_subscription(Subscription(topics=("flights",)))
                    for name in filter(None, options.get("members", "").split(","))
                }
                return joined(
                    code,
                    member_id=options.get("id", "m1"),
                    leader=options.get("leader", "m2"),
                    generation=int(options.get("generation", 1)),
                    protocol=options.get("assignor", "range"),
                    members=members,
                    skip_assignment="skip-assignment" in command.words,
                )
            case "synced":
                return synced(
                    encode_assignment(Assignment(partitions=partitions_of(options.get("partitions", "")))), code
                )
            case "heartbeat":
                return beaten(code)
            case "left":
                return m.leave_group_response.LeaveGroupResponse(throttle_time=from_ms(0), error_code=code, members=())
        raise AssertionError(f"unknown answer: {command.word(0)}")

    def own_request(self, request: Any) -> list[str]:
        if isinstance(request, m.leave_group_request.LeaveGroupRequest):
            return [f"member id {each.member_id}" for each in request.members]
        parts = [f"member id {request.member_id or 'none'}"]
        parts += [f"instance {request.group_instance_id}"] if request.group_instance_id else []
        match request:
            case m.join_group_request.JoinGroupRequest():
                for each in request.protocols:
                    told = decode_subscription(each.metadata)
                    owned = f" owns {partitions_text(told.owned_partitions)}" if told.owned_partitions else ""
                    parts.append(f"{each.name} of {' '.join(told.topics) or 'no topics'}{owned}")
                parts += [f"reason: {request.reason}"] if request.reason else []
            case m.sync_group_request.SyncGroupRequest():
                parts.append(f"generation {request.generation_id}")
                parts += [
                    f"{each.member_id} gets {partitions_text(decode_assignment(each.assignment).partitions)}"
                    for each in request.assignments
                ]
            case m.heartbeat_request.HeartbeatRequest():
                parts.append(f"generation {request.generation_id}")
        return parts


class ConsumerMemberTranscript(MemberTranscript):
    """Commands of a member of a consumer group (KIP-848)."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs["subscribe"] = self.subscribe

    def create(self, command: Command) -> None:
        self.member = ConsumerMembership(
            "g",
            "m1",
            chance=lambda: 0.0,
            instance_id=command.options.get("instance"),
            server_assignor=command.options.get("assignor"),
        )

    def own_response(self, command: Command, code: ErrorCode) -> object:
        assert command.word(0) == "heartbeat", f"unknown answer: {command.word(0)}"
        topics: dict[str, list[int]] | None = None
        if "partitions" in command.options:
            topics = {}
            for topic, partition in partitions_of(command.options["partitions"]):
                topics.setdefault(topic, []).append(partition)
        return assigned(topics, epoch=int(command.options.get("epoch", 1)), code=code)

    def own_request(self, request: Any) -> list[str]:
        parts = [f"epoch {request.member_epoch}"]
        parts += [f"instance {request.instance_id}"] if request.instance_id else []
        if request.subscribed_topic_names is not None:
            parts.append(f"topics {' '.join(request.subscribed_topic_names) or 'none'}")
        if request.subscribed_topic_regex is not None:
            parts.append(f"regex {request.subscribed_topic_regex or 'none'}")
        if request.server_assignor is not None:
            parts.append(f"assignor {request.server_assignor}")
        if to_ms(request.rebalance_timeout) >= 0:
            parts.append(f"rebalance timeout {to_ms(request.rebalance_timeout)} ms")
        if request.topic_partitions is not None:
            owned = [(topic_name(each.topic_id), int(p)) for each in request.topic_partitions for p in each.partitions]
            parts.append(f"owns {partitions_text(owned)}")
        return parts


class StreamsMemberTranscript(MemberTranscript):
    """Commands of a member of a streams group (KIP-1071). Tasks are those of one subtopology: `active=0,1`."""

    def __init__(self) -> None:
        super().__init__()
        self.verbs |= {
            "join": lambda _: self.member.join(self.now_ms),
            "shutdown": lambda _: self.member.request_shutdown(self.now_ms),
        }

    def create(self, command: Command) -> None:
        self._script = ScriptedCoordinator(
            instance_id=command.options.get("instance"), early_look="early-look" in command.words
        )
        self.member = self._script.member

    def acknowledge(self, command: Command) -> None:
        tasks = {role: tasks_of(command, role) for role in ("active", "standby", "warmup")}
        version = command.options.get("version")
        self.member.acknowledge(
            tasks["active"] or {},
            self.now_ms,
            standby=tasks["standby"],
            warmup=tasks["warmup"],
            version=None if version is None else int(version),
        )

    def leave(self, command: Command) -> None:
        self.member.leave(self.now_ms, for_a_while="for-a-while" in command.words)

    def own_response(self, command: Command, code: ErrorCode) -> object:
        script, options = self._script, command.options
        script.now_ms = self.now_ms
        sent: list[object] = []
        member, script.member = script.member, Recorder(sent)  # type: ignore[assignment]
        match command.word(0):
            case "heartbeat":
                script.answer(
                    epoch=int(options.get("epoch", 1)),
                    active=tasks_of(command, "active"),
                    standby=tasks_of(command, "standby"),
                    warmup=tasks_of(command, "warmup"),
                    status=[(StatusCode[options["status"]], "detail")] if "status" in options else (),
                    code=code,
                )
            case "versions":
                script.speaks(int(command.word(1)), code)
            case "group":
                holder = options.get("instance")
                members = [
                    (name, holder, {"flights": numbers(text)}) for name, text in options.items() if name != "instance"
                ]
                script.describe(*members, code=code)
            case _:
                raise AssertionError(f"unknown answer: {command.word(0)}")
        script.member = member
        return sent[0]

    def own_request(self, request: Any) -> list[str]:
        if not isinstance(request, m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest):
            return ["heartbeat versions"] if hasattr(request, "client_software_name") else ["the group"]
        parts = [f"epoch {request.member_epoch}"]
        parts += [f"instance {request.instance_id}"] if request.instance_id else []
        parts += ["topology"] if request.topology is not None else []
        for role in ("active", "standby", "warmup"):
            tasks = getattr(request, f"{role}_tasks")
            if tasks is not None and (tasks or role == "active"):
                parts.append(f"owns {role} {' '.join(str(p) for each in tasks for p in each.partitions) or 'none'}")
        parts += ["shutdown"] if request.shutdown_application else []
        return parts


class Recorder:
    """Takes the answer that a `ScriptedCoordinator` builds for its member."""

    def __init__(self, sent: list[object]) -> None:
        self._sent = sent

    def on_response(self, response: object, _now_ms: int) -> None:
        self._sent.append(response)


def event_text(event: Any) -> str:
    """`Rebalance: assigned flights-0`: the fields that are set, of an error its code."""
    parts = []
    for each in fields(event):
        name, value = each.name.replace("_", " "), getattr(event, each.name)
        match value:
            case HeadraceError():
                parts.append(value.code)
            case AssignmentSnapshot():
                parts.append(f"epoch {value.member_epoch}")
                if isinstance(event, e.Assigned):
                    parts += [f"{role} {tasks_text(getattr(value, role))}" for role in ("active", "standby", "warmup")]
            case TargetAssignment():
                parts.append(f"target active {tasks_text(value.active)}")
            case () if name == "assigned":
                parts.append("assigned none")
            case bool():
                parts += [name] if value else []
            case _ if name not in HIDDEN and value not in ((), {}, "", 0, None):
                parts.append(f"{name} {value_text(value)}")
    name = type(event).__name__
    return f"{name}: {', '.join(parts)}" if parts else name


def value_text(value: Any) -> str:
    match value:
        case Mapping():
            return tasks_text(value)
        case ((str(), int()), *_):
            return partitions_text(value)
        case ((int(), str()), *_):
            return " ".join(f"{StatusCode(code).name} ({detail})" for code, detail in value)
    return str(value)


def tasks_text(tasks: Mapping[str, Iterable[int]]) -> str:
    return " ".join(str(number) for partitions in tasks.values() for number in partitions) or "none"


def partitions_text(partitions: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{topic}-{number}" for topic, number in sorted(partitions)) or "none"


def partitions_of(text: str) -> tuple[tuple[str, int], ...]:
    """`flights-0,flights-1`."""
    names = [each.rpartition("-") for each in text.split(",") if each]
    return tuple((topic, int(number)) for topic, _, number in names)


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def tasks_of(command: Command, role: str) -> dict[str, list[int]] | None:
    if role not in command.options:
        return None
    found = numbers(command.options[role])
    return {"flights": found} if found else {}


def topic_name(of_id: object) -> str:
    return next((name for name in TOPICS if topic_id(name) == of_id), "unknown")
