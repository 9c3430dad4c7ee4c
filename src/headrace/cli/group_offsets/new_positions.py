"""New positions of a reset: the scenarios of Kafka's group tools, planned over the partitions' logs.

A position outside its log is moved to the log's end or start, a moment without records falls back to the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from headrace.cli.group_offsets.moments import duration_ms, moment_ms
from headrace.cli.group_offsets.partitions import TopicPartition

if TYPE_CHECKING:
    from headrace.cli.group_options import GroupOptions
    from headrace.client.admin import Admin

__all__ = ["NewPositions"]


class NewPositions:
    """The planning of one group. Mutable: gathers Kafka's `sentences` and our `warnings`."""

    def __init__(self, admin: Admin, committed: Mapping[TopicPartition, int], now_ms: int) -> None:
        self._admin, self._committed, self._now_ms = admin, committed, now_ms
        self.sentences: list[str] = []
        self.warnings: list[str] = []

    def planned(self, options: GroupOptions, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Raises click.UsageError: nothing is committed that could be shifted."""
        if options.to_offset is not None:
            return self.inside(dict.fromkeys(partitions, options.to_offset))
        if options.shift_by is not None:
            return self.inside(self._shifted(partitions, options.shift_by))
        if options.to_current:
            absent = [key for key in partitions if key not in self._committed]
            latest = self._ends(absent, "latest")
            return {key: latest.get(key, self._committed.get(key, 0)) for key in partitions}
        if options.to_datetime is not None:
            return self._at(partitions, moment_ms(options.to_datetime))
        if options.by_duration is not None:
            return self._at(partitions, self._now_ms - duration_ms(options.by_duration))
        return self._ends(partitions, "earliest" if options.to_earliest else "latest")

    def inside(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """These positions, moved into their logs where they lie outside."""
        starts, ends = self._ends(wanted, "earliest"), self._ends(wanted, "latest")
        inside = {}
        for key, offset in wanted.items():
            inside[key] = min(max(offset, starts[key]), ends[key])
            if inside[key] != offset:
                name = f"{key[0]}-{key[1]}"
                self.warnings.append(
                    f"{name} has offsets {starts[key]} to {ends[key]}: {inside[key]} is taken instead of {offset}"
                )
        return inside

    def _shifted(self, partitions: list[TopicPartition], by: int) -> dict[TopicPartition, int]:
        for topic, partition in partitions:
            if (topic, partition) not in self._committed:
                raise click.UsageError(
                    f"Cannot shift offset for partition {topic}-{partition} since there is no current committed offset"
                )
        return {key: self._committed[key] + by for key in partitions}

    def _ends(self, partitions: Iterable[TopicPartition], which: str) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, which)
        found = self._admin.list_offsets(wanted) if wanted else {}
        return {key: position.offset for key, position in found.items()}

    def _at(self, partitions: list[TopicPartition], at_ms: int) -> dict[TopicPartition, int]:
        found = self._admin.list_offsets(dict.fromkeys(partitions, at_ms))
        empty = [key for key in partitions if found[key].offset < 0]
        for topic, partition in empty:
            self.sentences.append(
                f"Warn: Partition {partition} from topic {topic} is empty. Falling back to latest known offset."
            )
        latest = self._ends(empty, "latest")
        return {key: latest.get(key, found[key].offset) for key in partitions}
