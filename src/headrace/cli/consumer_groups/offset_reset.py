"""`--reset-offsets` of groups of consumers without members: planned, and with `--execute` done.

As in kafka-consumer-groups (4.3.1) any partition may be named, whether the group read it or not, and a group that does
not exist gets its positions, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.cli.group_offsets.new_positions import NewPositions
from headrace.cli.group_offsets.offset_csv import read_plan
from headrace.cli.group_offsets.partitions import TopicPartition, missing_partitions, named_partitions
from headrace.cli.group_offsets.reset_report import GroupReset, no_plan, not_empty
from headrace.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from headrace.cli.consumer_groups.options import ConsumerGroupOptions
    from headrace.client.admin import Admin

__all__ = ["reset_offsets"]

INACTIVE = ("Empty", "Dead")


def reset_offsets(
    admin: Admin, group_ids: Iterable[str], options: ConsumerGroupOptions, *, now_ms: int
) -> list[GroupReset]:
    """One result per group, in order. Raises BrokerError `group-kind`, ConfigError `bad-value`."""
    chosen = list(dict.fromkeys(group_ids))
    plan = read_plan(options.from_file, options.groups) if options.from_file is not None else None
    described = admin.try_describe_consumer_groups(chosen)
    results = []
    for group_id in chosen:
        error = described.errors.get(group_id)
        if error is not None and error.code != "group-missing":
            raise error
        group = described.done.get(group_id)
        if group is not None and group.state not in INACTIVE:
            results.append(not_empty(group_id, group.state))
            continue
        result = _planned(admin, group_id, options, plan, now_ms)
        if options.execute and result.error is None:
            admin.alter_offsets(group_id, dict(result.after))
        results.append(result)
    return results


def _planned(
    admin: Admin,
    group_id: str,
    options: ConsumerGroupOptions,
    plan: Mapping[str, Mapping[TopicPartition, int]] | None,
    now_ms: int,
) -> GroupReset:
    committed = admin.committed_offsets(group_id)
    positions = NewPositions(admin, committed, now_ms)
    after: Mapping[TopicPartition, int] = {}
    error: BrokerError | ConfigError | None
    if plan is not None and group_id not in plan:
        return no_plan(group_id, options.from_file)
    if plan is not None:
        error = missing_partitions(admin, plan[group_id])
        after = {} if error is not None else positions.inside(plan[group_id])
    else:
        partitions, absent = list(committed), list[str]()
        if not options.all_topics:
            partitions, absent = named_partitions(admin, options.topics, option="--topic")
        error = missing_partitions(admin, [*partitions, *((topic, 0) for topic in absent)])
        after = {} if error is not None or not partitions else positions.planned(options, partitions)
    return GroupReset(
        group_id=group_id,
        before={key: committed[key] for key in after if key in committed},
        after=dict(sorted(after.items())),
        sentences=tuple(positions.sentences),
        warnings=tuple(positions.warnings),
        error=error,
    )
