"""`--delete`: groups without members, with their positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.terminal import data, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["delete_groups"]

_REASONS = {"NON_EMPTY_GROUP": "The group is not empty.", "GROUP_ID_NOT_FOUND": "The group id does not exist."}


def delete_groups(
    admin: Admin, group_ids: Iterable[str], *, kinds: tuple[str, ...], bootstrap_servers: str, as_json: bool
) -> int:
    """Exit code 1 when a group was refused. What is of another kind is deleted as well, as Kafka's tool does it."""
    chosen = list(dict.fromkeys(group_ids))
    outcomes = admin.try_delete_groups(chosen)
    if as_json:
        print_json(
            [
                {"group": each, "deleted": each in outcomes.done, "error": _code(outcomes.errors.get(each))}
                for each in chosen
            ]
        )
    else:
        _tell(list(outcomes.done), outcomes.errors)
    for group_id, error in outcomes.errors.items():
        missing = error.code == "group-missing"
        listed = admin.list_groups() if missing else ()
        told = unknown_group_error(group_id, listed, bootstrap_servers, kinds=kinds) if missing else error
        report_error(told, as_json=as_json)
    return 1 if outcomes.errors else 0


def _code(error: BrokerError | None) -> str | None:
    return None if error is None else error.code


def _tell(deleted: list[str], refused: Mapping[str, BrokerError]) -> None:
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
