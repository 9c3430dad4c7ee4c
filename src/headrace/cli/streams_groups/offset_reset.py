"""`--reset-offsets`: where each partition of a group without members is to go on, shown or done.

The scenarios and their limits are kafka-streams-groups' (4.3.1): only partitions with a committed position are reset
(but for `--from-file`), a position outside the log is moved to its end, an empty moment falls back to the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.cli.group_offsets.new_positions import NewPositions
from headrace.cli.group_offsets.offset_csv import read_plan
from headrace.cli.group_offsets.partitions import TopicPartition, input_topics, missing_partitions, named_partitions
from headrace.cli.group_offsets.reset_report import GroupReset, no_plan, not_empty
from headrace.cli.streams_groups.internal_topics import (
    inferred_internal_topics,
    is_inferred,
    kept_sentence,
    topology_internal_topics,
)
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from headrace.cli.streams_groups.options import StreamsGroupOptions
    from headrace.client.admin import Admin
    from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["reset_offsets"]


def reset_offsets(
    admin: Admin, group_ids: Iterable[str], options: StreamsGroupOptions, *, now_ms: int
) -> list[GroupReset]:
    """One result per group, in order. Raises BrokerError `group-missing`, ConfigError `bad-value`."""
    chosen = list(dict.fromkeys(group_ids))
    plan = read_plan(options.from_file, options.groups) if options.from_file is not None else None
    described = admin.try_describe_streams_groups(chosen)
    results = []
    for group_id in chosen:
        group = described.done.get(group_id)
        if group is None:
            _check_absent(admin, group_id, options)
        if group is not None and group.state not in ("Empty", "Dead"):
            results.append(not_empty(group_id, group.state))
            continue
        result = _Reset(admin, group_id, group, options, now_ms).planned(plan)
        if options.execute and result.error is None:
            result = _executed(admin, result, group, options)
        results.append(result)
    return results


def _check_absent(admin: Admin, group_id: str, options: StreamsGroupOptions) -> None:
    """Positions of a group that does not exist may come from a file; a group of another type must be empty for that."""
    listed = {group.group_id: group for group in admin.list_groups()}
    other = listed.get(group_id)
    if options.from_file is None or (other is not None and other.state != "Empty"):
        raise unknown_group_error(group_id, listed.values(), options.bootstrap_servers)


def _executed(
    admin: Admin, result: GroupReset, group: StreamsGroupDescription | None, options: StreamsGroupOptions
) -> GroupReset:
    """Positions first, then internal topics; with a sentence for each that is named otherwise and stays."""
    admin.alter_offsets(result.group_id, dict(result.after))
    topics, kept = list(options.delete_internal_topics), list[str]()
    if options.delete_all_internal_topics and group is not None:
        topics, kept = inferred_internal_topics(group)
    if topics:
        admin.delete_topics(topics, missing_ok=True)
    return replace(result, sentences=(*result.sentences, *(kept_sentence(topic, result.group_id) for topic in kept)))


class _Reset:
    """The planning of one group. Mutable: gathers what there is to say."""

    def __init__(
        self,
        admin: Admin,
        group_id: str,
        group: StreamsGroupDescription | None,
        options: StreamsGroupOptions,
        now_ms: int,
    ) -> None:
        self._admin, self._group_id, self._group, self._options = admin, group_id, group, options
        self._committed = admin.committed_offsets(group_id)
        self._positions = NewPositions(admin, self._committed, now_ms)

    def planned(self, plan: Mapping[str, Mapping[TopicPartition, int]] | None) -> GroupReset:
        error: BrokerError | ConfigError | None = self._foreign_internal_topics()
        partitions: list[TopicPartition] = []
        after: Mapping[TopicPartition, int] = {}
        if error is None and plan is not None:
            after, error = self._from_plan(plan)
        elif error is None:
            partitions, error = self._partitions()
            after = {} if error is not None else self._positions.planned(self._options, partitions)
        return GroupReset(
            group_id=self._group_id,
            before={key: self._committed[key] for key in after if key in self._committed},
            after=dict(sorted(after.items())),
            sentences=tuple(self._positions.sentences),
            warnings=tuple(self._positions.warnings),
            error=error,
        )

    def _foreign_internal_topics(self) -> ConfigError | None:
        """Kafka's tool would delete whatever topic is named; ours deletes the group's own."""
        own = set(topology_internal_topics(self._group)) if self._group is not None else set()
        foreign = [
            topic
            for topic in self._options.delete_internal_topics
            if topic not in own and not is_inferred(topic, self._group_id)
        ]
        if not foreign:
            return None
        return ConfigError(
            "bad-value",
            f"{foreign[0]} is no internal topic of the group {self._group_id}",
            f"its internal topics: {', '.join(sorted(own)) or 'none'}",
        )

    def _partitions(self) -> tuple[list[TopicPartition], BrokerError | None]:
        if self._options.all_input_topics:
            assert self._group is not None
            sources = input_topics(self._group)
            return [key for key in self._committed if key[0] in sources], None
        partitions, absent = named_partitions(self._admin, self._options.input_topics)
        missing = missing_partitions(self._admin, [*partitions, *((topic, 0) for topic in absent)])
        if missing is not None:
            return [], missing
        strangers = [f"{topic}-{number}" for topic, number in partitions if (topic, number) not in self._committed]
        if not strangers:
            return partitions, None
        self._positions.sentences.append(f"One or more topics are not part of the group '{self._group_id}'.")
        return [], BrokerError(
            "no-offset",
            f"the group {self._group_id} has no committed position for {', '.join(strangers)}",
            "name partitions that it has read, or give all positions with --from-file",
            group_id=self._group_id,
        )

    def _from_plan(
        self, plan: Mapping[str, Mapping[TopicPartition, int]]
    ) -> tuple[dict[TopicPartition, int], BrokerError | ConfigError | None]:
        wanted = plan.get(self._group_id)
        if wanted is None:
            refused = no_plan(self._group_id, self._options.from_file)
            self._positions.sentences += refused.sentences
            return {}, refused.error
        missing = missing_partitions(self._admin, wanted)
        return ({}, missing) if missing is not None else (self._positions.inside(wanted), None)
