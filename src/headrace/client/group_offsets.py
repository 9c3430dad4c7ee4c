"""Committed offsets of a group: commit as a member or as an administrator, and fetch.

From v9 OffsetCommit and OffsetFetch carry the member epoch (KIP-848, KIP-1071): commit with the epoch that was captured
with the assignment, never a newer one. A request commits everything or returns an error per partition; a streams group
refuses the whole request for one partition of another member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from uuid import UUID

from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from headrace.client.admin_results import CommittedOffset
from headrace.client.broker_errors import STALE_METADATA, raise_for, recreated_topic, refusal
from headrace.client.cluster_metadata import ClusterMetadata
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.client.transaction_markers import GROUP_OFFSETS, OpenTransaction, find_open_transaction
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.partitioner import partition_for_group

__all__ = ["commit_offsets", "fetch_committed", "fetch_offsets", "fetch_offsets_and_metadata"]

TopicPartition = tuple[str, int]
NO_OFFSET = -1
NO_TOPIC_IDS: Mapping[TopicPartition, UUID] = MappingProxyType({})


def commit_offsets(
    client: NetworkClient,
    group_id: str,
    offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, CommittedOffset],
    *,
    topic_ids: Mapping[TopicPartition, UUID] = NO_TOPIC_IDS,
    member_id: str = "",
    member_epoch: int = -1,
    instance_id: str | None = None,
    timeout_ms: float | None = None,
) -> None:
    """Commit offsets (the next record to read), plain or with leader epoch and metadata.

    Retriable errors are retried until the API timeout.

    Args:
        client: A client of the cluster.
        group_id: The group.
        offsets: Offsets by partition.
        topic_ids: Topics that the offsets belong to; without an id an offset is committed for the topic that has the
            name. OffsetCommit v10 carries the ids, so that the coordinator refuses offsets of a deleted topic; before
            v10 the id is compared with the cluster's metadata only. Offsets of topics that still exist are committed,
            then `topic-recreated` is raised.
        member_id: Empty without a membership, which is allowed while the group has no members.
        member_epoch: The member's epoch, or generation in a classic group.
        instance_id: `group.instance.id` of a static member.
        timeout_ms: The time for everything; the API timeout if not given.

    Raises:
        Fenced: The member epoch is no longer valid.
        BrokerError: Other refusals (`facts`: topic, partition); nothing is committed, or, unless it is a streams group,
            only a part.
    """
    if not offsets:
        return
    committed = {
        key: given if isinstance(given, CommittedOffset) else CommittedOffset(offset=given)
        for key, given in offsets.items()
    }
    deadline = Deadline.after_ms(client.api_timeout_ms if timeout_ms is None else timeout_ms)
    backoff = Backoff()
    refresh = False
    gone: BrokerError | None = None
    while True:
        # 1. Offsets of a topic that was deleted and created again must not be committed under its name. The metadata
        #    may be stale, so a mismatch counts only after a refresh. From v10 on the coordinator checks the ids itself;
        #    a topic that is created again after this comparison is refused there.
        cluster = client.known_topics(_topics(offsets), refresh=refresh)
        strange = _of_other_topics(committed, topic_ids, cluster)
        if strange and not refresh:
            refresh = True
            continue
        # 2. The rest is committed before the error is raised: a deleted topic must not hold back the offsets of others.
        if strange:
            gone = gone or _recreated(group_id, strange[0], topic_ids, cluster)
            committed = {key: offset for key, offset in committed.items() if key not in strange}
        if not committed:
            break
        request = _commit_request(group_id, committed, member_id, member_epoch, instance_id, cluster)
        response = client.call_coordinator(
            group_id, request, lambda r: (code for _, _, code in _commit_errors(r)), timeout_ms=_left_ms(deadline)
        )
        failed = [entry for entry in _commit_errors(response) if entry[2] != ErrorCode.none]
        if not failed:
            break
        # 3. Everything is sent again if all errors are retriable: a commit is idempotent. One final error ends the
        #    call, and is the one that is raised.
        again = all(is_retriable(code) for _, _, code in failed)
        if not again or deadline.passed:
            topic, partition, code = next((f for f in failed if not is_retriable(f[2])), failed[0])
            name = topic if isinstance(topic, str) else cluster.topic_name(topic) or str(topic)
            raise refusal(
                code,
                f"the offset commit of {group_id} for {name}-{partition}",
                api="OffsetCommit",
                group_id=group_id,
                topic=name,
                partition=partition,
                member_epoch=member_epoch,
            )
        refresh = any(code in STALE_METADATA for _, _, code in failed)
        backoff.pause(deadline)
    if gone is not None:
        raise gone


def fetch_offsets(
    client: NetworkClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, int]:
    """Return the committed offset of each partition, -1 where there is none.

    Args:
        client: A client of the cluster.
        group_id: The group.
        partitions: None: all that have a committed offset.
        member_id: The member, if the fetch is to be fenced.
        member_epoch: Its epoch.
        require_stable: Wait for open transactions (KIP-447) until the API timeout.
        timeout_ms: The time for everything; the API timeout if not given.

    Raises:
        Fenced: The member epoch is no longer valid.
        BrokerError: Other refusals.
    """
    found = fetch_offsets_and_metadata(
        client,
        group_id,
        partitions,
        member_id=member_id,
        member_epoch=member_epoch,
        require_stable=require_stable,
        timeout_ms=timeout_ms,
    )
    return {key: offset for key, (offset, _) in found.items()}


def fetch_offsets_and_metadata(
    client: NetworkClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, tuple[int, str]]:
    """Fetch committed offsets as (offset, metadata). Arguments as of `fetch_committed`."""
    found = fetch_committed(
        client,
        group_id,
        partitions,
        member_id=member_id,
        member_epoch=member_epoch,
        require_stable=require_stable,
        timeout_ms=timeout_ms,
    )
    return {key: (committed.offset, committed.metadata) for key, committed in found.items()}


def fetch_committed(
    client: NetworkClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    member_id: str | None = None,
    member_epoch: int = -1,
    require_stable: bool = False,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, CommittedOffset]:
    """Fetch committed offsets with leader epoch and metadata.

    Args:
        client: connection to the cluster.
        group_id: of the group.
        partitions: None: all partitions of the group.
        member_id: id of the asking member; None outside the group.
        member_epoch: its epoch; -1 outside the group.
        require_stable: wait until no transaction has pending offsets.
        timeout_ms: None: the client's default.

    Raises:
        BrokerError: the group refuses, or the coordinator was not reachable in time.
    """
    wanted = None if partitions is None else list(dict.fromkeys(partitions))
    if wanted == []:
        return {}
    deadline = Deadline.after_ms(client.api_timeout_ms if timeout_ms is None else timeout_ms)
    backoff = Backoff()
    refresh = False
    while True:
        # Without a list of partitions the response names topics by id (v10), so the names of all topics are needed.
        cluster = client.metadata() if wanted is None else client.known_topics(_topics(wanted), refresh=refresh)
        request = _fetch_request(group_id, wanted, member_id, member_epoch, require_stable, cluster)
        response = client.call_coordinator(group_id, request, _fetch_errors, timeout_ms=_left_ms(deadline))
        codes = [code for code in _fetch_errors(response) if code != ErrorCode.none]
        if not codes:
            return _read_offsets(response, wanted, cluster)
        # UNSTABLE_OFFSET_COMMIT means that a transaction with offsets of this group is open (KIP-447): its outcome
        # decides which offset is the committed one.
        fatal = next((code for code in codes if not _worth_waiting(code)), None)
        if fatal is not None:
            raise_for(fatal, f"the offset fetch of {group_id}", api="OffsetFetch", group_id=group_id)
        if deadline.passed:
            raise _unfinished(client, group_id, codes[0])
        refresh = any(code in STALE_METADATA for code in codes)
        backoff.pause(deadline)


def _unfinished(client: NetworkClient, group_id: str, code: ErrorCode) -> BrokerError:
    """Return the error of an offset fetch that waited in vain. It names the transaction that holds the offsets open."""
    what = f"the offset fetch of {group_id}"
    found = None
    if code == ErrorCode.unstable_offset_commit:
        with suppress(HeadraceError):  # the lookup is best effort
            found = _open_transaction(client, group_id)
    if found is None:
        return refusal(code, what, api="OffsetFetch", group_id=group_id)
    return refusal(
        code,
        what,
        api="OffsetFetch",
        fix=found.how_to_end(),
        why=f"in {found.topic}-{found.partition}, {found.describe()}",
        group_id=group_id,
        transactional_id=found.transactional_id,
        producer_id=found.producer_id,
    )


def _open_transaction(client: NetworkClient, group_id: str) -> OpenTransaction | None:
    """Return the oldest open transaction of the partition of `__consumer_offsets` that holds the group's offsets."""
    offsets = client.metadata([GROUP_OFFSETS]).topics.get(GROUP_OFFSETS)
    if offsets is None:
        return None
    return find_open_transaction(client, GROUP_OFFSETS, partition_for_group(group_id, len(offsets.partitions)))


def _of_other_topics(
    committed: Iterable[TopicPartition], topic_ids: Mapping[TopicPartition, UUID], cluster: ClusterMetadata
) -> list[TopicPartition]:
    """Return the partitions whose offsets belong to another topic than the one that has the name now."""
    return [key for key in committed if key in topic_ids and _topic_id(cluster, key[0]) not in (None, topic_ids[key])]


def _recreated(
    group_id: str, key: TopicPartition, topic_ids: Mapping[TopicPartition, UUID], cluster: ClusterMetadata
) -> BrokerError:
    topic, partition = key
    return recreated_topic(
        f"The offset commit of {group_id} for {topic}-{partition}",
        topic,
        topic_ids[key],
        _topic_id(cluster, topic),
        fix="No action needed: offsets of the deleted topic mean nothing in the new one, which is read from its start.",
        partition=partition,
        group_id=group_id,
        api="OffsetCommit",
    )


def _worth_waiting(code: ErrorCode) -> bool:
    # UNSTABLE_OFFSET_COMMIT ends with the transaction, whose timeout bounds it.
    return is_retriable(code) or code == ErrorCode.unstable_offset_commit


def _left_ms(deadline: Deadline) -> float:
    return max(deadline.remaining_s, 0.1) * 1000


def _topics(partitions: Iterable[TopicPartition]) -> list[str]:
    return list(dict.fromkeys(topic for topic, _ in partitions))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def _commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    member_id: str,
    member_epoch: int,
    instance_id: str | None,
    cluster: ClusterMetadata,
) -> RequestMessage:
    request = m.offset_commit_request
    return request.OffsetCommitRequest(
        group_id=GroupId(group_id),
        generation_id_or_member_epoch=i32(member_epoch),
        member_id=member_id,
        group_instance_id=instance_id,
        topics=tuple(
            request.OffsetCommitRequestTopic(
                name=TopicName(topic),
                topic_id=_topic_id(cluster, topic),
                partitions=tuple(
                    request.OffsetCommitRequestPartition(
                        partition_index=i32(p),
                        committed_offset=i64(offsets[topic, p].offset),
                        committed_leader_epoch=i32(offsets[topic, p].leader_epoch),
                        committed_metadata=offsets[topic, p].metadata,
                    )
                    for p in partitions
                ),
            )
            for topic, partitions in _by_topic(offsets).items()
        ),
    )


def _fetch_request(
    group_id: str,
    wanted: list[TopicPartition] | None,
    member_id: str | None,
    member_epoch: int,
    require_stable: bool,
    cluster: ClusterMetadata,
) -> RequestMessage:
    request = m.offset_fetch_request
    # Null asks for all partitions that have a committed offset.
    topics = None
    if wanted is not None:
        topics = tuple(
            request.OffsetFetchRequestTopics(
                name=TopicName(topic),
                topic_id=_topic_id(cluster, topic),
                partition_indexes=tuple(i32(p) for p in partitions),
            )
            for topic, partitions in _by_topic(wanted).items()
        )
    group = request.OffsetFetchRequestGroup(
        group_id=GroupId(group_id), member_id=member_id, member_epoch=i32(member_epoch), topics=topics
    )
    return request.OffsetFetchRequest(groups=(group,), require_stable=require_stable)


def _topic_id(cluster: ClusterMetadata, topic: str) -> UUID | None:
    metadata = cluster.topics.get(topic)
    return None if metadata is None else metadata.topic_id


def _commit_errors(
    response: m.offset_commit_response.OffsetCommitResponse,
) -> Iterator[tuple[str | UUID | None, int, ErrorCode]]:
    for topic in response.topics:
        for partition in topic.partitions:
            yield topic.name or topic.topic_id, int(partition.partition_index), partition.error_code


def _fetch_errors(response: m.offset_fetch_response.OffsetFetchResponse) -> Iterator[ErrorCode]:
    for group in response.groups:
        yield group.error_code
        for topic in group.topics:
            for partition in topic.partitions:
                yield partition.error_code


def _read_offsets(
    response: m.offset_fetch_response.OffsetFetchResponse, wanted: list[TopicPartition] | None, cluster: ClusterMetadata
) -> dict[TopicPartition, CommittedOffset]:
    found = {
        (
            topic.name or cluster.topic_name(topic.topic_id) or str(topic.topic_id),
            int(partition.partition_index),
        ): CommittedOffset(
            offset=int(partition.committed_offset),
            leader_epoch=int(partition.committed_leader_epoch),
            metadata=partition.metadata or "",
        )
        for group in response.groups
        for topic in group.topics
        for partition in topic.partitions
    }
    if wanted is None:
        return {key: found[key] for key in sorted(found)}
    # Kafka returns offset -1 without an error for a partition without a commit, and for a group that does not exist.
    return {key: found.get(key, CommittedOffset(offset=NO_OFFSET)) for key in wanted}
