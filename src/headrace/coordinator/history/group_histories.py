"""Histories of all groups of a coordinator, or of a cluster that is observed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headrace.coordinator.history.assignments import TopicName
from headrace.coordinator.history.group_history import SETTINGS_CHANGED, GroupHistory
from headrace.coordinator.history.history_record import Author, HistoryKind, HistoryRecord
from headrace.coordinator.records.schemas import (
    ConsumerGroupMetadataKey,
    GroupMetadataKey,
    OffsetCommitKey,
    StreamsGroupMetadataKey,
)
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord

__all__ = ["RECORDER", "GroupHistories"]

RECORDER = ""
"""Group id of entries about the recorder itself."""
# Names of deleted groups, whose entries are still in the topic: a group of the same name continues their sequence.
MOST_SEQUENCES = 100_000
_GROUP_KEYS = (ConsumerGroupMetadataKey, GroupMetadataKey, StreamsGroupMetadataKey)


class GroupHistories:
    """Histories by group. Mutable.

    Args:
        topic_name: Names of topic ids.
        sees_requests: Whether events and authors are observed, besides records.
        sequences: Sequence number of the next entry, by group.
    """

    def __init__(
        self, *, topic_name: TopicName, sees_requests: bool = True, sequences: Mapping[str, int] | None = None
    ) -> None:
        self._topic_name = topic_name
        self._sees_requests = sees_requests
        self._sequences = dict(sequences or {})
        self._groups: dict[str, GroupHistory] = {}
        # Groups that may have entries, or will have some when time passes.
        self._active: dict[str, GroupHistory] = {}
        self._own: list[HistoryRecord] = []

    def load(self, records: Iterable[CoordinatorRecord], at_ms: int) -> None:
        """Take over the groups that exist already, without entries."""
        by_group: dict[str, list[CoordinatorRecord]] = {}
        for record in records:
            by_group.setdefault(_group_id(record.key), []).append(record)
        for group_id, found in by_group.items():
            if any(not isinstance(record.key, OffsetCommitKey) for record in found):
                # Offsets last: a commit counts for a partition that is assigned.
                found.sort(key=lambda record: isinstance(record.key, OffsetCommitKey))
                self._history(group_id).load(found, at_ms)

    def observe(
        self, records: Sequence[CoordinatorRecord], events: Sequence[CoordinatorEvent], author: Author, at_ms: int
    ) -> None:
        """Take note of the effects of one rule, which may concern several groups."""
        is_deleted = author.request == "DeleteGroups"
        if not events and not is_deleted and self._observe_commit(records, author, at_ms):
            return
        if any(event.name == SETTINGS_CHANGED for event in events):
            self._observe_settings(events, author, at_ms)
            return
        changed: dict[str, tuple[list[CoordinatorRecord], list[CoordinatorEvent]]] = {}
        for record in records:
            changed.setdefault(_group_id(record.key), ([], []))[0].append(record)
        for event in events:
            changed.setdefault(event.group_id, ([], []))[1].append(event)
        for group_id, (of_group, about) in changed.items():
            # A group that changes its type has records of the new one behind the tombstone. A group that only holds
            # offsets has no record of its own, but a request that deletes it.
            if is_deleted or _is_deletion(of_group):
                self._delete(group_id, of_group, about, author, at_ms)
            elif group_id in self._groups or about or not all(map(_is_offset_or_tombstone, of_group)):
                history = self._history(group_id)
                history.observe(of_group, about, author, at_ms)
                self._active[group_id] = history

    def _observe_commit(self, records: Sequence[CoordinatorRecord], author: Author, at_ms: int) -> bool:
        """Take note of a commit of one group, which nearly all calls are. False if the records are something else."""
        key = records[0].key if records else None
        if not isinstance(key, OffsetCommitKey):
            return False
        # Groups without members have no history.
        history = self._groups.get(key.group)
        if history is None:
            return True
        if not all(isinstance(each.key, OffsetCommitKey) and each.key.group == key.group for each in records):
            return False
        history.observe(records, (), author, at_ms)
        if history.has_entries:
            self._active[key.group] = history
        return True

    def _delete(
        self,
        group_id: str,
        records: Sequence[CoordinatorRecord],
        events: Sequence[CoordinatorEvent],
        author: Author,
        at_ms: int,
    ) -> None:
        if group_id not in self._groups and not author.request:
            return  # a group without history, whose offsets expired
        history = self._history(group_id)
        # Its offsets go with it, without an entry of their own.
        history.observe([each for each in records if not isinstance(each.key, OffsetCommitKey)], events, author, at_ms)
        history.delete(author, at_ms)
        self._forget(history)

    def _observe_settings(self, events: Sequence[CoordinatorEvent], author: Author, at_ms: int) -> None:
        for event in events:
            changes = dict(event.details)["changes"]
            if event.group_id == RECORDER:
                self._add_own("settings", changes, author, at_ms)
                continue
            # Settings may come before the first member, and for names that never become groups: those keep no state.
            is_known = event.group_id in self._groups
            history = self._history(event.group_id)
            history.change_settings(changes, author, at_ms)
            self._active[event.group_id] = history
            if not is_known:
                self._forget(history)

    def add_own(self, detail: str, at_ms: int) -> None:
        """Add an entry about the recorder: that it began, or what it has lost."""
        self._add_own("recorder", detail, Author(), at_ms)

    def _add_own(self, kind: HistoryKind, detail: str, author: Author, at_ms: int) -> None:
        sequence = self._sequences.get(RECORDER, 0)
        self._sequences[RECORDER] = sequence + 1
        self._own.append(
            HistoryRecord(
                group_id=RECORDER,
                sequence=sequence,
                step=sequence,
                at_ms=at_ms,
                kind=kind,
                author=author,
                detail=detail,
            )
        )

    def on_time(self, now_ms: int) -> None:
        """Add the entries that are due."""
        for history in self._active.values():
            history.on_time(now_ms)

    def take_entries(self) -> list[HistoryRecord]:
        """Return the new entries, those of a group in order."""
        entries, self._own = self._own, []
        for group_id, history in tuple(self._active.items()):
            entries += history.take_entries()
            if not history.is_waiting:
                del self._active[group_id]
        return entries

    def drop_entries(self) -> None:
        """Drop the new entries, as if they had not been made: the state behind them stays.

        For one who reads the past of a cluster. Numbers go on where they were before it, because an entry overwrites
        the one that has its slot, which must be the oldest of the group.
        """
        first: dict[str, int] = {}
        for entry in self.take_entries():
            first[entry.group_id] = min(first.get(entry.group_id, entry.sequence), entry.sequence)
        for group_id, sequence in first.items():
            history = self._groups.get(group_id)
            if history is None:
                self._sequences[group_id] = sequence
            else:
                history.restart(sequence)

    def _history(self, group_id: str) -> GroupHistory:
        history = self._groups.get(group_id)
        if history is None:
            history = self._groups[group_id] = GroupHistory(
                group_id,
                topic_name=self._topic_name,
                next_sequence=self._sequences.pop(group_id, 0),
                sees_requests=self._sees_requests,
            )
        return history

    def _forget(self, history: GroupHistory) -> None:
        """Drop the state of a group that was deleted."""
        self._own += history.take_entries()
        self._active.pop(history.group_id, None)
        del self._groups[history.group_id]
        while len(self._sequences) >= MOST_SEQUENCES:
            del self._sequences[next(iter(self._sequences))]
        self._sequences[history.group_id] = history.next_sequence


def _group_id(key: object) -> str:
    return str(getattr(key, "group_id", None) or getattr(key, "group", ""))


def _is_deletion(records: Sequence[CoordinatorRecord]) -> bool:
    return any(isinstance(record.key, _GROUP_KEYS) for record in records) and all(
        record.value is None for record in records
    )


def _is_offset_or_tombstone(record: CoordinatorRecord) -> bool:
    return record.value is None or isinstance(record.key, OffsetCommitKey)
