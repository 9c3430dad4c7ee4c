"""`consumer-groups --delete` and `--reset-offsets`, for groups without members.

As in kafka-consumer-groups (4.3.1), any partition may be named, whether the group read it or not, and a reset creates a
group that does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.group_offsets import (
    INACTIVE,
    GroupReset,
    NewPositions,
    TopicPartition,
    missing_partitions,
    named_partitions,
    no_plan,
    not_empty,
    read_plan,
)
from headrace.cli.terminal import data, print_json
from headrace.client.broker_errors import unknown_group_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.cli.group_options import ConsumerGroupOptions
    from headrace.client.admin import Admin
    from headrace.errors import BrokerError, ConfigError

__all__ = ["delete_groups", "reset_offsets"]

_REASONS = {"NON_EMPTY_GROUP": "The group is not empty.", "GROUP_ID_NOT_FOUND": "The group id does not exist."}


def delete_groups(
    admin: Admin, group_ids: Iterable[str], *, kinds: tuple[str, ...], bootstrap_servers: str, as_json: bool
) -> int:
    """Exit code 1 when a group was refused. What is of another kind is deleted as well, as Kafka's tool does it."""
    chosen = list(dict.fromkeys(group_ids))
    # No look at the groups beforehand, unlike for streams groups: kafka-consumer-groups deletes what DeleteGroups
    # accepts, which is any empty group.
    outcomes = admin.try_delete_groups(chosen)
    if as_json:
        print_json(
            [
                {"group": each, "deleted": each in outcomes.done, "error": _code(outcomes.errors.get(each))}
                for each in chosen
            ]
        )
    else:
        _print_result(list(outcomes.done), outcomes.errors)
    for group_id, error in outcomes.errors.items():
        missing = error.code == "group-missing"
        listed = admin.list_groups() if missing else ()
        # Groups are listed only for an error, to name a near one.
        reported = unknown_group_error(group_id, listed, bootstrap_servers, kinds=kinds) if missing else error
        report_error(reported, as_json=as_json)
    return 1 if outcomes.errors else 0


def _code(error: BrokerError | None) -> str | None:
    return None if error is None else error.code


def _print_result(deleted: list[str], refused: Mapping[str, BrokerError]) -> None:
    names = ", ".join(f"'{group_id}'" for group_id in deleted)
    if not refused:
        data(f"Deletion of requested consumer groups ({names}) was successful.")
        return
    data("\nError: Deletion of some consumer groups failed:")
    for group_id, error in refused.items():
        reason = _REASONS.get(error.kafka_name or "", error.message)
        data(f"* Group '{group_id}' could not be deleted due to: {reason}")
    if deleted:
        data(f"\nThese consumer groups were deleted successfully: {names}")


def reset_offsets(
    admin: Admin, group_ids: Iterable[str], options: ConsumerGroupOptions, *, now_ms: int
) -> list[GroupReset]:
    """Reset the offsets; return one result per group, in order.

    Raises BrokerError `group-kind`, ConfigError `bad-value`.
    """
    chosen = list(dict.fromkeys(group_ids))
    plan = read_plan(options.from_file, options.groups) if options.from_file is not None else None
    described = admin.try_describe_consumer_groups(chosen)
    results = []
    for group_id in chosen:
        # A group that does not exist is planned like an empty one: OffsetCommit with generation -1 creates it (a simple
        # group), which is how positions are prepared before the first start of a consumer.
        error = described.errors.get(group_id)
        if error is not None and error.code != "group-missing":
            raise error
        group = described.done.get(group_id)
        if group is not None and group.state not in INACTIVE:
            results.append(not_empty(group_id, group.state))
            continue
        # Plan and commit are separate, so that --dry-run shows exactly what --execute does. Between both a consumer may
        # join; then the broker refuses the commit with UNKNOWN_MEMBER_ID and nothing changes.
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
        # A topic that was named without partitions and does not exist is reported as its partition 0, as in Kafka's
        # tool.
        error = missing_partitions(admin, [*partitions, *((topic, 0) for topic in absent)])
        after = {} if error is not None or not partitions else positions.planned(options, partitions)
    return positions.reset(group_id, after, error)
