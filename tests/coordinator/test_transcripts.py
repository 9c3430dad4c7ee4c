"""Transcripts of the streams group coordinator: commands and their effects, as text files readable without Python.

A transcript (`transcripts/*.txt`) is a list of commands, each followed by `----` and its output: the reply or refusal,
the records in the order of the log, timers, topics to create, and events. The manner is that of etcd/raft's datadriven
tests. To write the outputs anew after an intended change: HEADRACE_REWRITE_TRANSCRIPTS=1, then review the diff.

Commands (time in ms):
  coordinator [topic=partitions …] [setting=value …]  a shard, without the initial rebalance delay unless it is set
  join MEMBER [instance=ID] [topology=stateful]       epoch 0
  heartbeat MEMBER EPOCH [owns=0_0,0_1] [instance=ID] `owns` says which active tasks the member has
  leave MEMBER [EPOCH] [instance=ID]                  epoch -1 for good, -2 temporarily
  topics topic=partitions …                           a new metadata image
  sleep MS                                            timers fire
  restart                                             the shard is lost, a new one replays the log
"""

from __future__ import annotations

import os
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext, Outcome

from headrace.coordinator.records.schemas import CurrentTaskIds, TaskIds
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CancelTimer, CoordinatorRecord, CoordinatorResult

TRANSCRIPTS = Path(__file__).parent / "transcripts"
REWRITE = bool(os.environ.get("HEADRACE_REWRITE_TRANSCRIPTS"))
STATUSES = {
    0: "STALE_TOPOLOGY",
    1: "MISSING_SOURCE_TOPICS",
    2: "INCORRECTLY_PARTITIONED_TOPICS",
    3: "MISSING_INTERNAL_TOPICS",
    4: "SHUTDOWN_APPLICATION",
    5: "ASSIGNMENT_DELAYED",
}


class RecordingContext(CoordinatorContext):
    """Mutable: `lines` is what the command in hand brought about."""

    def __init__(self, topics: dict[str, int], settings: dict[str, Any]) -> None:
        self.lines: list[str] = []
        super().__init__(topics=topics, settings=settings)

    def apply(self, result: CoordinatorResult) -> Outcome:
        outcome = super().apply(result)
        self.lines += [f"reply   {reply_text(each.response)}" for each in result.replies]
        self.lines += [f"append  {record_text(each)}" for each in result.records]
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


def reply_text(response: Any) -> str:
    parts = [f"epoch {response.member_epoch}"]
    if response.active_tasks is not None:
        tasks = [f"{each.subtopology_id}_{index}" for each in response.active_tasks for index in each.partitions]
        parts.append(f"active tasks {' '.join(tasks) or 'none'}")
    parts += [f"status {STATUSES[int(each.status_code)]} ({each.status_detail})" for each in response.status or ()]
    return ", ".join(parts)


def record_text(record: CoordinatorRecord) -> str:
    name = type(record.key).__name__.removesuffix("Key")
    member = getattr(record.key, "member_id", "")
    head = f"{name} {member}".strip()
    return f"{head}: tombstone" if record.value is None else f"{head}: {value_text(record.value)}"


def value_text(value: Any) -> str:
    if isinstance(value, CurrentTaskIds) and value.assignment_epochs is not None:
        epochs = zip(value.partitions, value.assignment_epochs, strict=True)
        return " ".join(f"{value.subtopology_id}_{partition}@{epoch}" for partition, epoch in epochs)
    if isinstance(value, TaskIds | CurrentTaskIds):
        return " ".join(f"{value.subtopology_id}_{partition}" for partition in value.partitions)
    if is_dataclass(value):
        shown = [(each.name, getattr(value, each.name)) for each in fields(value)]
        defaults = {each.name: each.default for each in fields(value) if each.default is not MISSING}
        hidden = {"client_id", "client_host", "metadata_hash", "last_assignment_configs", "subtopologies"}
        texts = [
            f"{n}={value_text(v)}" for n, v in shown if n not in hidden and (n not in defaults or v != defaults[n])
        ]
        return ", ".join(texts) or "empty"
    return " ".join(map(value_text, value)) if isinstance(value, tuple) else str(value)


def numbers(pairs: list[str]) -> dict[str, int]:
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def run(ctx: RecordingContext | None, command: str) -> RecordingContext:
    verb, *words = command.split()
    if verb == "coordinator":
        given = numbers(words)
        settings = {name: value for name, value in given.items() if "." in name}
        topics = {name: count for name, count in given.items() if "." not in name}
        return RecordingContext(topics, settings)
    assert ctx is not None, "a transcript begins with `coordinator`"
    ctx.lines = []
    options: dict[str, Any] = {name: value for name, sign, value in (each.partition("=") for each in words) if sign}
    plain = [each for each in words if "=" not in each]
    member = {"instance_id": options["instance"]} if "instance" in options else {}
    if verb == "join":
        topology = {"topology": STATEFUL} if options.get("topology") == "stateful" else {}
        ctx.join(plain[0], rebalance_timeout_ms=10_000, **member, **topology)
    elif verb == "heartbeat":
        owned: dict[str, list[int]] = {}
        for task in filter(None, options.get("owns", "").split(",")):
            owned.setdefault(task.partition("_")[0], []).append(int(task.partition("_")[2]))
        ctx.heartbeat(plain[0], int(plain[1]), active=owned if "owns" in options else None, **member)
    elif verb == "leave":
        ctx.heartbeat(plain[0], int(plain[1]) if len(plain) > 1 else -1, **member)
    elif verb == "topics":
        ctx.set_topics(numbers(words))
    elif verb == "sleep":
        ctx.sleep(int(plain[0]))
    elif verb == "restart":
        ctx.restart()
    else:
        raise AssertionError(f"unknown command: {verb}")
    return ctx


def played(text: str) -> str:
    """The transcript with its outputs as they are now; comments and the order of commands stay."""
    out: list[str] = []
    ctx: RecordingContext | None = None
    for block in text.strip().split("\n\n"):
        head = block.partition("\n----")[0]
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        if not commands:
            out.append(head)
            continue
        (command,) = commands
        try:
            ctx = run(ctx, command)
            lines = ctx.lines
        except CoordinatorError as error:
            lines = [f"refused {error.code.name.upper()}: {error.message}"]
        out.append("\n".join([head, "----", *(lines or ["nothing"])]))
    return "\n\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    now = played(text)
    if REWRITE:
        path.write_text(now)
    assert now == text or REWRITE
