"""History of one group: what changed, who caused it, what the group waited for, and what it cost. Pure.

Input are the effects of the coordinator's rules as they are applied: records, events and the author of the request.
Changes that follow one another within `STEP_QUIET_MS` are one step. Its first entry is the cause of the others, which
carry its sequence number. The rates of the group before, during and after one or several steps follow once the group
has been quiet for `RATE_WINDOW_MS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.coordinator.history.assignments import AssignmentReader, TopicName
from headrace.coordinator.history.commit_rates import CommitRates
from headrace.coordinator.history.group_changes import GroupChanges, GroupEvent
from headrace.coordinator.history.history_record import MOST_PARTITIONS, Author, HistoryKind, HistoryRecord
from headrace.coordinator.history.standstill import PartitionStandstill, StandstillTracker
from headrace.coordinator.records.schemas import (
    ConsumerGroupCurrentMemberAssignmentKey,
    OffsetCommitKey,
    OffsetCommitValue,
    StreamsGroupCurrentMemberAssignmentKey,
)
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord

__all__ = ["SETTINGS_CHANGED", "STEP_QUIET_MS", "GroupHistory"]

SETTINGS_CHANGED = "SettingsChanged"
"""Name of the event of changed settings, which no rule of the coordinator emits; its detail is `changes`."""

STEP_QUIET_MS = 15_000
# The rates of a storm that never ends are reported this often.
RATE_LONGEST_MS = 600_000
RATE_WINDOW_MS = 60_000
# Positions by name in one entry.
MOST_OFFSETS = 50
_COORDINATOR = Author()
_ASSIGNMENT_KEYS = (ConsumerGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentKey)
_NO_REASON = "not provided"
"""Kafka's text for a client that gives none (KIP-800)."""
_CONVERSIONS = {"GroupUpgraded": "to a consumer group", "GroupDowngraded": "to a classic group"}


@dataclass(slots=True)
class _Reasons:
    """Reasons of one rule: of members that left, and of the new epoch; members that left at a request. Mutable."""

    of_members: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    of_epoch: str = ""


class GroupHistory:
    """History of one group. Mutable.

    Args:
        group_id: The group.
        next_sequence: Sequence number of the next entry.
        topic_name: Names of topic ids.
        sees_requests: Whether the events of the coordinator's rules are observed, besides its records.
    """

    def __init__(
        self, group_id: str, *, topic_name: TopicName, next_sequence: int = 0, sees_requests: bool = True
    ) -> None:
        self.group_id = group_id
        self.next_sequence = next_sequence
        self._changes = GroupChanges()
        self._tracker = StandstillTracker()
        self._assignments = AssignmentReader(self._tracker, topic_name, sees_requests=sees_requests)
        self._rates = CommitRates()
        self._entries: list[HistoryRecord] = []
        self._clients: dict[str, str] = {}
        # Sequence of the first entry of the present step, or of the one before.
        self._step = next_sequence
        self._last_ms = -STEP_QUIET_MS
        # First step whose rates are not reported, and its time; None once they are.
        self._unreported: tuple[int, int] | None = None
        # Author and time of the last entry about offsets that were set from outside.
        self._offsets_set: tuple[Author, int] | None = None

    @property
    def has_entries(self) -> bool:
        """Whether there are entries to take."""
        return bool(self._entries)

    @property
    def is_waiting(self) -> bool:
        """Whether `on_time` may have entries: a step or a standstill is not over."""
        return self._unreported is not None or self._tracker.is_waiting

    def load(self, records: Iterable[CoordinatorRecord], at_ms: int) -> None:
        """Take over the state of a group that exists already, without entries."""
        for record in records:
            if isinstance(record.key, OffsetCommitKey):
                if isinstance(record.value, OffsetCommitValue) and record.producer_id < 0:
                    self._commit(record.key, record.value, min(at_ms, record.value.commit_timestamp))
                continue
            self._assignments.apply(record.key, record.value, at_ms)
            self._note_clients(self._changes.apply(record.key, record.value, at_ms))
        self._changes.take_leaves()

    def observe(
        self,
        records: Sequence[CoordinatorRecord],
        events: Sequence[CoordinatorEvent],
        author: Author,
        at_ms: int,
    ) -> None:
        """Take note of the effects of one rule: records and events of this group."""
        reasons = _Reasons()
        # 1. Events first: they hold the reasons of what the records show, and changes that no record shows yet.
        for event in events:
            self._observe_event(event, records, reasons, author, at_ms)
        # 2. Records in their order. The rule that replaces a static member writes the assignment that it takes over and
        #    the one that it has now; only the last of a rule was ever in effect.
        last = {record.key: record for record in records if isinstance(record.key, _ASSIGNMENT_KEYS)}
        changes: list[GroupEvent] = []
        self._note_offsets(records, author, at_ms)
        for record in records:
            key: Any = record.key
            if isinstance(key, OffsetCommitKey):
                if isinstance(record.value, OffsetCommitValue):
                    self._commit(key, record.value, at_ms)
                continue
            if not isinstance(key, _ASSIGNMENT_KEYS):
                self._assignments.apply(key, record.value, at_ms)
            elif record is last[key] and record.value is None:
                self._tracker.remove(key.member_id, at_ms, is_abrupt=key.member_id not in reasons.asked)
            elif record is last[key]:
                self._assignments.apply(key, record.value, at_ms)
            changes += self._changes.apply(key, record.value, at_ms)
        self._add_changes([*changes, *self._changes.take_leaves()], reasons, author)

    def _observe_event(
        self,
        event: CoordinatorEvent,
        records: Sequence[CoordinatorRecord],
        reasons: _Reasons,
        author: Author,
        at_ms: int,
    ) -> None:
        details = dict(event.details)
        member_id = details.get("member_id") or details.get("member", "")
        reason = details.get("reason", "")
        if reason == _NO_REASON:
            reason = ""
        match event.name:
            case "MemberFenced" | "MemberLeft":
                reasons.of_members[member_id] = reason
                if event.name == "MemberLeft":
                    reasons.asked.add(member_id)
                # The record of a classic group follows with the next generation.
                if not any(_is_about(record, member_id) for record in records):
                    self._leave(member_id, reasons, author, at_ms)
            case "GroupEpochBumped":
                reasons.of_epoch = reason
            case "RebalanceBegan":
                self._begin_rebalance(reason, author, at_ms)
            case "StaticMemberAway":
                client_id = self._clients.get(member_id, "")
                self._add("away", at_ms, author, reason=reason, member_id=member_id, client_id=client_id)
            case "TopologyNotReady" | "TopologyReady":
                kind: HistoryKind = "ready" if event.name == "TopologyReady" else "not-ready"
                self._add(kind, at_ms, author, reason=reason, detail=details.get("status", ""))
            case "GroupUpgraded" | "GroupDowngraded":
                self._add("converted", at_ms, author, detail=_CONVERSIONS[event.name])

    def delete(self, author: Author, at_ms: int) -> None:
        """Take note that the group was deleted: by a request, or by the coordinator when its last offset expired."""
        self._add("deleted", at_ms, author)

    def change_settings(self, changes: str, author: Author, at_ms: int) -> None:
        """Take note of changed settings of the group."""
        self._add("settings", at_ms, author, detail=changes)

    def on_time(self, now_ms: int) -> None:
        """Add the standstills that are over, and the rates of steps that are over."""
        finished = self._tracker.take_finished(now_ms)
        if finished:
            self._add_standstill(finished, now_ms)
        if self._unreported is not None and (
            now_ms - self._last_ms >= RATE_WINDOW_MS or now_ms - self._unreported[1] >= RATE_LONGEST_MS
        ):
            self._add_rates(*self._unreported, now_ms)
            self._unreported = None

    def take_entries(self) -> list[HistoryRecord]:
        """Return the new entries in order."""
        entries, self._entries = self._entries, []
        return entries

    def restart(self, next_sequence: int) -> None:
        """Begin a new step with this number; steps so far are not reported any more."""
        self._step = self.next_sequence = next_sequence
        self._last_ms, self._unreported = -STEP_QUIET_MS, None

    def _commit(self, key: OffsetCommitKey, value: OffsetCommitValue, at_ms: int) -> None:
        partition = key.topic, key.partition
        self._tracker.commit(partition, at_ms)
        self._rates.commit(partition, value.offset, at_ms)

    def _note_offsets(self, records: Sequence[CoordinatorRecord], author: Author, at_ms: int) -> None:
        """Add an entry for positions that no member set: a reset of an empty group, and removed ones.

        A simple consumer that commits under the name of an empty group is like a tool that resets it. It has an entry
        a minute, unless it moves back.
        """
        is_set = author.request == "OffsetCommit"
        # Commits of members, which nearly all calls are.
        if is_set and self._changes.member_count:
            return
        moved, removed, is_back = [], [], False
        for record in records:
            key, value = record.key, record.value
            if not isinstance(key, OffsetCommitKey):
                continue
            before = self._rates.offset((key.topic, key.partition))
            if value is None:
                removed.append(f"{key.topic}-{key.partition}")
                self._rates.forget((key.topic, key.partition))
            elif is_set and isinstance(value, OffsetCommitValue) and before != value.offset:
                moved.append(f"{key.topic}-{key.partition} {'' if before is None else f'{before} '}to {value.offset}")
                is_back = is_back or (before is not None and value.offset < before)
        if removed:
            self._add("offsets", at_ms, author, detail=f"removed: {_listed(removed)}")
        if not moved:
            return
        last = self._offsets_set
        if is_back or last is None or last[0] != author or at_ms - last[1] >= RATE_WINDOW_MS:
            self._offsets_set = author, at_ms
            self._add("offsets", at_ms, author, detail=f"set: {_listed(moved)}")

    def _begin_rebalance(self, reason: str, author: Author, at_ms: int) -> None:
        count = self._changes.member_count
        detail = f"JoinGroup of {count} member{'' if count == 1 else 's'}" if count else ""
        self._add("waiting", at_ms, author, reason=reason, detail=detail)
        self._assignments.begin_rebalance(at_ms)

    def _leave(self, member_id: str, reasons: _Reasons, author: Author, at_ms: int) -> None:
        left = [*self._changes.leave(member_id, at_ms), *self._changes.take_leaves()]
        self._tracker.remove(member_id, at_ms, is_abrupt=member_id not in reasons.asked)
        self._add_changes(left, reasons, author)

    def _add_changes(self, changes: Sequence[GroupEvent], reasons: _Reasons, author: Author) -> None:
        self._note_clients(changes)
        for change in changes:
            reason = reasons.of_epoch if change.kind == "rebalance" else reasons.of_members.get(change.member_id, "")
            self._add(
                change.kind,
                change.at_ms,
                _author(change, author),
                reason=reason,
                member_id=change.member_id,
                client_id=change.client_id,
                client_host=change.client_host,
                instance_id=change.instance_id,
                group_type=change.group_type,
                session_timeout_ms=change.session_timeout_ms,
                rebalance_timeout_ms=change.rebalance_timeout_ms,
                assignor=change.assignor,
                detail=change.detail,
            )

    def _note_clients(self, changes: Iterable[GroupEvent]) -> None:
        # Names of members that are gone are needed until their partitions are read again.
        for change in changes:
            if change.kind in ("joined", "replaced"):
                self._clients[change.member_id] = change.client_id

    def _add_standstill(self, finished: list[PartitionStandstill], now_ms: int) -> None:
        longest = sorted(finished, key=lambda each: (-(each.at_most_ms or 0), -each.at_least_ms, each.topic))
        named = tuple(
            replace(each, from_member=self._client(each.from_member), to_member=self._client(each.to_member))
            for each in longest[:MOST_PARTITIONS]
        )
        self._entry("standstill", now_ms, partitions=named, partition_count=len(finished))
        self._clients = {
            member_id: name for member_id, name in self._clients.items() if self._changes.client_of(member_id)
        }

    def _client(self, member_id: str) -> str:
        return self._clients.get(member_id) or member_id

    def _add_rates(self, step: int, began_ms: int, now_ms: int) -> None:
        settled_ms = self._last_ms
        before = self._rates.rate(began_ms - RATE_WINDOW_MS, began_ms)
        after = self._rates.rate(settled_ms, min(now_ms, settled_ms + RATE_WINDOW_MS))
        if before is not None or after is not None:
            during = self._rates.rate(began_ms, settled_ms)
            self._entry("rate", now_ms, step=step, rate_before=before, rate_during=during, rate_after=after)

    def _add(self, kind: HistoryKind, at_ms: int, author: Author, **more: Any) -> None:
        """Add a change, which begins a step or is part of the present one."""
        if at_ms - self._last_ms >= STEP_QUIET_MS:
            self._step = self.next_sequence
        self._last_ms = at_ms
        if self._unreported is None:
            self._unreported = self._step, at_ms
        self._entry(kind, at_ms, author=author, **more)

    def _entry(self, kind: HistoryKind, at_ms: int, *, step: int | None = None, **more: Any) -> None:
        self._entries.append(
            HistoryRecord(
                group_id=self.group_id,
                sequence=self.next_sequence,
                step=self._step if step is None else step,
                at_ms=at_ms,
                kind=kind,
                **more,
            )
        )
        self.next_sequence += 1


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_OFFSETS
    return ", ".join(parts[:MOST_OFFSETS]) + (f" and {more} more" if more > 0 else "")


def _is_about(record: CoordinatorRecord, member_id: str) -> bool:
    return getattr(record.key, "member_id", None) == member_id


def _author(change: GroupEvent, author: Author) -> Author:
    """The author of a change: members join and subscribe by themselves.

    The request of a classic group that shows it is the leader's SyncGroup; from records alone no request is known.
    """
    if change.kind not in ("joined", "replaced", "subscription"):
        return author
    if change.group_type == "classic":
        # The principal of the SyncGroup is the leader's, who need not be this member.
        return Author(client_id=change.client_id, client_host=change.client_host, request="JoinGroup")
    return author if author.client_host else Author(client_id=change.client_id, client_host=change.client_host)
