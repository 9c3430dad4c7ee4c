"""`headrace groups --remove-members`: an operator makes members leave, in groups of every type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.terminal import data, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError, ConfigError
from headrace.near_names import nearest

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_groups import RemovableMember

__all__ = ["remove_members"]


def remove_members(admin: Admin, group_id: str, names: Sequence[str], *, bootstrap_servers: str, as_json: bool) -> int:
    """Remove members from a group and print what became of each.

    Args:
        admin: The cluster.
        group_id: A group of any type.
        names: Member ids or instance ids; empty for all members.
        bootstrap_servers: As the user gave it, for the fixes of errors.
        as_json: Whether to print one JSON document.

    Returns:
        The exit code: 1 if a member could not be removed.

    Raises:
        BrokerError: `group-missing`.
        ConfigError: `bad-value` for a name that no member has; then no member is removed.
    """
    try:
        members = admin.removable_members(group_id)
    except BrokerError as error:
        if error.code != "group-missing":
            raise
        raise unknown_group_error(group_id, admin.list_groups(), bootstrap_servers) from error
    chosen = _chosen(group_id, members, names)
    outcomes = admin.try_remove_members(group_id, chosen)
    if as_json:
        print_json(
            {
                "group_id": group_id,
                "removed": list(outcomes.done),
                "refused": {name: error.message for name, error in outcomes.errors.items()},
            }
        )
    else:
        for member_id in outcomes.done:
            data(f"Removed {member_id} from {group_id}.")
        if not chosen:
            data(f"{group_id} has no members.")
    for refused in outcomes.errors.values():
        report_error(refused, as_json=as_json)
    return 1 if outcomes.errors else 0


def _chosen(group_id: str, members: Sequence[RemovableMember], names: Sequence[str]) -> list[RemovableMember]:
    if not names:
        return list(members)
    by_name = {member.instance_id: member for member in members if member.instance_id}
    by_name |= {member.member_id: member for member in members}
    for name in names:
        if name not in by_name:
            near = nearest(name, by_name)
            raise ConfigError(
                "bad-value",
                f"Invalid --member '{name}': the group {group_id} has no such member or instance id.",
                f"Did you mean {near}?"
                if near
                else "List the members: headrace groups --describe, or use --all-members.",
                member=name,
            )
    return list({by_name[name].member_id: by_name[name] for name in names}.values())
