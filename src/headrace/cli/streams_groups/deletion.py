"""`--delete`: empty streams groups with their positions and, if asked, their internal topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.streams_groups.internal_topics import inferred_internal_topics, kept_sentence
from headrace.cli.terminal import data, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_results import GroupListing

__all__ = ["delete_groups", "delete_internal_topics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a group stays: the sentence of Kafka's tool, and our error."""

    sentence: str
    error: BrokerError


def delete_groups(
    admin: Admin, group_ids: Iterable[str], *, with_internal_topics: bool, bootstrap_servers: str, as_json: bool
) -> int:
    """Exit code 1 when a group, or an internal topic that exists, could not be deleted."""
    chosen = list(dict.fromkeys(group_ids))
    listed = {group.group_id: group for group in admin.list_groups()}
    refused = _refused_beforehand(chosen, listed, bootstrap_servers)
    left = [group_id for group_id in chosen if group_id not in refused]
    internal = _internal_topics(admin, left, quiet=as_json) if with_internal_topics else {}
    outcomes = admin.try_delete_groups(left)
    for group_id, error in outcomes.errors.items():
        refused[group_id] = Refusal(sentence=error.message, error=error)
    failures = {
        group_id: failure
        for group_id in outcomes.done
        if (failure := delete_internal_topics(admin, internal.get(group_id, ()))) is not None
    }
    if as_json:
        print_json(_document(chosen, refused, internal, failures))
    else:
        _tell(list(outcomes.done), refused)
        _tell_internal_topics(list(outcomes.done), internal, failures)
    for refusal in refused.values():
        report_error(refusal.error, as_json=as_json)
    return 1 if refused or failures else 0


def delete_internal_topics(admin: Admin, topics: Iterable[str]) -> BrokerError | None:
    """Delete the topics and return the errors. A topic that does not exist any more is not an error."""
    names = list(topics)
    if not names:
        return None
    try:
        admin.delete_topics(names, missing_ok=True)
    except BrokerError as error:
        return error
    return None


def _refused_beforehand(
    group_ids: Iterable[str], listed: Mapping[str, GroupListing], bootstrap_servers: str
) -> dict[str, Refusal]:
    streams = [name for name, group in listed.items() if group.group_type.lower() == "streams"]
    refused = {}
    for group_id in group_ids:
        if group_id not in streams:
            refused[group_id] = Refusal(
                sentence=f"Group '{group_id}' does not exist or is not a streams group.",
                error=unknown_group_error(group_id, listed.values(), bootstrap_servers),
            )
        elif listed[group_id].state != "Empty":
            error = BrokerError(
                "group-not-empty",
                f"the streams group {group_id} is {listed[group_id].state}: it has members",
                "stop all members of the group first",
                group_id=group_id,
            )
            refused[group_id] = Refusal(sentence=f"Streams group '{group_id}' is not EMPTY.", error=error)
    return refused


def _internal_topics(admin: Admin, group_ids: list[str], *, quiet: bool) -> dict[str, list[str]]:
    found = {}
    for group_id, group in admin.try_describe_streams_groups(group_ids).done.items():
        own, kept = inferred_internal_topics(group)
        if own:
            found[group_id] = own
        for topic in [] if quiet else kept:
            data(f"\nError: {kept_sentence(topic, group_id)}")
    return found


def _tell(deleted: list[str], refused: Mapping[str, Refusal]) -> None:
    names = "', '".join(deleted)
    if not refused:
        data(f"Deletion of requested streams groups ('{names}') was successful.")
        return
    data("\nError: Deletion of some streams groups failed:")
    for group_id, refusal in refused.items():
        data(f"* Group '{group_id}' could not be deleted due to: {refusal.sentence}")
    if deleted:
        data(f"\nThese streams groups were deleted successfully: '{names}'.")


def _tell_internal_topics(
    deleted: list[str], internal: Mapping[str, list[str]], failures: Mapping[str, BrokerError]
) -> None:
    if not internal or not deleted:
        return
    if not failures:
        names = "', '".join(group_id for group_id in deleted if group_id in internal)
        data(f"Deletion of associated internal topics of the streams groups ('{names}') was successful.")
        return
    data("Deletion of some associated internal topics failed:")
    for group_id, error in failures.items():
        data(f"* Internal topics of the streams group '{group_id}' could not be deleted due to: {error.message}")


def _document(
    chosen: list[str],
    refused: Mapping[str, Refusal],
    internal: Mapping[str, list[str]],
    failures: Mapping[str, BrokerError],
) -> list[dict[str, object]]:
    return [
        {
            "group": group_id,
            "deleted": group_id not in refused,
            "error": refused[group_id].error.code if group_id in refused else None,
            "internal_topics": internal.get(group_id, []),
            "internal_topics_error": failures[group_id].message if group_id in failures else None,
        }
        for group_id in chosen
    ]
