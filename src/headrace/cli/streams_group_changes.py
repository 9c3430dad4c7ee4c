"""`streams-groups --delete` and `--reset-offsets`, with the internal topics of the group where that is asked for.

Internal topics follow Kafka's rule (4.3.1, StreamsGroupCommand.retrieveInternalTopics): named in the topology, no
source topic, `GROUP-…-repartition`, `GROUP-…-changelog` or a topic of a foreign-key join. A topic with another name may
belong to another application and is never deleted with a group.

Only partitions with a committed position are reset, except with `--from-file`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.cli.error_fixes import report_error
from headrace.cli.group_offsets import (
    INACTIVE,
    GroupReset,
    NewPositions,
    TopicPartition,
    input_topics,
    missing_partitions,
    named_partitions,
    no_plan,
    not_empty,
    read_plan,
)
from headrace.cli.terminal import data, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.cli.group_options import StreamsGroupOptions
    from headrace.client.admin import Admin
    from headrace.client.admin_results import GroupListing, StreamsGroupDescription

__all__ = [
    "delete_groups",
    "delete_internal_topics",
    "inferred_internal_topics",
    "is_inferred",
    "kept_sentence",
    "reset_offsets",
    "topology_internal_topics",
]

# Names that Kafka Streams gives its internal topics: stores, repartitions, and the two topics of a foreign-key join
# (KIP-213), whose generated names contain a running number before `-topic`.
_SUFFIXES = ("-changelog", "-repartition", "-subscription-registration-topic", "-subscription-response-topic")
_FOREIGN_KEY_JOIN = re.compile(r".+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-\d+-topic")


def topology_internal_topics(group: StreamsGroupDescription) -> list[str]:
    """Repartition and changelog topics of the topology, in order."""
    if group.topology is None:
        return []
    subtopologies = group.topology.subtopologies
    sources = {topic for each in subtopologies for topic in each.source_topics}
    own = {
        topic.name
        for each in subtopologies
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
    }
    # A source topic may be used as a changelog (topology.optimization "reuse.ktable.source.topics"): deleting it would
    # delete the user's data.
    return sorted(own - sources)


def inferred_internal_topics(group: StreamsGroupDescription) -> tuple[list[str], list[str]]:
    """(to be deleted with the group, named otherwise and kept)."""
    topics = topology_internal_topics(group)
    own = [topic for topic in topics if is_inferred(topic, group.group_id)]
    return own, [topic for topic in topics if topic not in own]


def kept_sentence(topic: str, group_id: str) -> str:
    """Return the text of Kafka's tool about a topic that is kept."""
    return (
        f"The internal topic '{topic}' is not inferred as internal "
        f"and thus will not be deleted with the group '{group_id}'."
    )


def is_inferred(topic: str, group_id: str) -> bool:
    """Whether a topic is internal to the group, judged by its name alone."""
    return topic.startswith(f"{group_id}-") and (
        topic.endswith(_SUFFIXES) or _FOREIGN_KEY_JOIN.fullmatch(topic) is not None
    )


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
    # 1. Refuse what is no empty streams group, by one ListGroups for all of them.
    listed = {group.group_id: group for group in admin.list_groups()}
    refused = _refused_beforehand(chosen, listed, bootstrap_servers)
    left = [group_id for group_id in chosen if group_id not in refused]
    # 2. Internal topics are known from the topology, which is deleted with the group: look first.
    internal = _internal_topics(admin, left, quiet=as_json) if with_internal_topics else {}
    # 3. The group before its topics. If the deletion of the group is refused (a member has just joined), its changelogs
    #    must still be there.
    outcomes = admin.try_delete_groups(left)
    for group_id, error in outcomes.errors.items():
        refused[group_id] = Refusal(sentence=error.message, error=error)
    # 4. Topics of groups that are gone. A failure here leaves topics without a group, which `headrace topics --delete`
    #    removes; the other order would leave a group without its state.
    failures = {
        group_id: failure
        for group_id in outcomes.done
        if (failure := delete_internal_topics(admin, internal.get(group_id, ()))) is not None
    }
    if as_json:
        print_json(_document(chosen, refused, internal, failures))
    else:
        _print_result(list(outcomes.done), refused)
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


def _print_result(deleted: list[str], refused: Mapping[str, Refusal]) -> None:
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


def reset_offsets(
    admin: Admin, group_ids: Iterable[str], options: StreamsGroupOptions, *, now_ms: int
) -> list[GroupReset]:
    """Reset the offsets; return one result per group, in order.

    Raises BrokerError `group-missing`, ConfigError `bad-value`.
    """
    chosen = list(dict.fromkeys(group_ids))
    plan = read_plan(options.from_file, options.groups) if options.from_file is not None else None
    described = admin.try_describe_streams_groups(chosen)
    results = []
    for group_id in chosen:
        group = described.done.get(group_id)
        if group is None:
            _check_absent(admin, group_id, options)
        if group is not None and group.state not in INACTIVE:
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
    # Positions first: they are refused if a member has joined meanwhile, and then no topic has been deleted.
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
        return self._positions.reset(self._group_id, after, error)

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
        unknown = [f"{topic}-{number}" for topic, number in partitions if (topic, number) not in self._committed]
        if not unknown:
            return partitions, None
        self._positions.sentences.append(f"One or more topics are not part of the group '{self._group_id}'.")
        return [], BrokerError(
            "no-offset",
            f"the group {self._group_id} has no committed position for {', '.join(unknown)}",
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
