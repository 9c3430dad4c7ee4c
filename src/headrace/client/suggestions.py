"""Errors about a topic or group that is not there, with the one that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.errors import BrokerError
from headrace.near_names import nearest

if TYPE_CHECKING:
    from headrace.client.admin_results import GroupListing

__all__ = ["unknown_group_error", "unknown_topic_error"]


def unknown_topic_error(topic: str, known: Iterable[str], bootstrap_servers: str) -> BrokerError:
    """topic-missing, with the near name first and the command that creates the topic behind it."""
    near = nearest(topic, known)
    create = f"headrace topics --create --topic {topic} --partitions 8"
    fix = f'did you mean "{near}"?  else:  {create}' if near else create
    return BrokerError(
        "topic-missing", f'topic "{topic}" does not exist on {bootstrap_servers}', fix, topic=topic, nearest=near or ""
    )


def unknown_group_error(
    group_id: str, listed: Iterable[GroupListing], bootstrap_servers: str, *, kinds: tuple[str, ...] = ("streams",)
) -> BrokerError:
    """group-missing: no group of these kinds has that name; group-kind when there is one of another type."""
    groups = {group.group_id: group for group in listed}
    wanted = "streams" if "streams" in kinds else "consumer"
    other = groups.get(group_id)
    if other is not None and other.group_type.lower() not in kinds:
        way = {
            ("classic", "streams"): "an empty classic group becomes a streams group when a streams member joins it; ",
            ("consumer", "streams"): f"stop its consumers, then:  headrace upgrade {group_id} ; ",
        }.get((other.group_type.lower(), wanted), "")
        return BrokerError(
            "group-kind",
            f'"{group_id}" is a {other.group_type.lower()} group ({other.state}), not a {wanted} group',
            f"{way}see all groups with:  headrace groups --list",
            group_id=group_id,
        )
    near = nearest(group_id, (name for name, group in groups.items() if group.group_type.lower() in kinds))
    fix = f'did you mean "{near}"?' if near else "see which there are:  headrace groups --list"
    return BrokerError(
        "group-missing", f'there is no {wanted} group "{group_id}" on {bootstrap_servers}', fix, group_id=group_id
    )
