"""Administration of topics, offsets and groups, after Kafka's Admin, in snake_case. Results are frozen.

Each call fails as a whole with the first refusal (BrokerError); retriable refusals are retried until the API timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.checked_api import checked_api
from headrace.client import admin_cluster, admin_groups, group_offsets
from headrace.client.admin_cluster import ResourceType, UpgradeType
from headrace.client.admin_groups import ConsumerGroupDescription, RemovableMember, remove_members
from headrace.client.admin_results import (
    CommittedOffset,
    ConfigEntry,
    FeatureDescription,
    GroupListing,
    OffsetAndTimestamp,
    Outcomes,
    StreamsGroupDescription,
)
from headrace.client.broker_errors import STALE_METADATA, refusal
from headrace.client.cluster_metadata import TopicMetadata
from headrace.client.connection import ConnectionLost, Response
from headrace.client.deadline import Backoff, Deadline
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = ["Admin", "IsolationLevel"]

Entry = TypeVar("Entry")

TopicPartition = tuple[str, int]
IsolationLevel = Literal["read_committed", "read_uncommitted"]

# `ListOffsetsRequest`: max_timestamp since KIP-734, earliest_local and latest_tiered for tiered storage (KIP-405,
# KIP-1005).
_TIMESTAMPS = {"latest": -1, "earliest": -2, "max_timestamp": -3, "earliest_local": -4, "latest_tiered": -5}
BROKER_DEFAULT = -1


@checked_api(forwards=NetworkClient.__init__)
class Admin:
    """Administration client of a cluster. A context manager.

    Example:
        `with Admin("localhost:9092") as admin: admin.create_topics({"orders": 8})`
    """

    def __init__(self, cluster: str | Sequence[str] | NetworkClient, **settings: Any) -> None:
        """Args:
        cluster: Bootstrap addresses, or a `NetworkClient`, which then stays open when the Admin is closed.
        settings: Further arguments of `NetworkClient`.
        """
        self._owns_client = not isinstance(cluster, NetworkClient)
        self.client = cluster if isinstance(cluster, NetworkClient) else NetworkClient(cluster, **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless a client was passed in."""
        if self._owns_client:
            self.client.close()

    # Topics.

    def create_topics(
        self,
        partitions: Mapping[str, int],
        *,
        configs: Mapping[str, Mapping[str, str]] | None = None,
        replication_factor: int = BROKER_DEFAULT,
        exist_ok: bool = False,
    ) -> None:
        """Create topics.

        Args:
            partitions: Topic → number of partitions.
            configs: Topic → settings.
            replication_factor: -1 for the broker's default.
            exist_ok: Whether topics may exist already.

        Raises:
            BrokerError: `topic-exists` unless `exist_ok`; other refusals.
        """
        request = m.create_topics_request
        message = request.CreateTopicsRequest(
            topics=tuple(
                request.CreatableTopic(
                    name=TopicName(name),
                    num_partitions=i32(count),
                    replication_factor=i16(replication_factor),
                    assignments=(),
                    configs=tuple(
                        request.CreatableTopicConfig(name=key, value=value)
                        for key, value in (configs or {}).get(name, {}).items()
                    ),
                )
                for name, count in partitions.items()
            ),
            timeout=from_ms(self.client.request_timeout_ms),
        )
        # A creation that was sent twice, because its answer was lost, meets its own topic: `exist_ok` is for callers
        # that repeat.
        accepted = {ErrorCode.none} | ({ErrorCode.topic_already_exists} if exist_ok else set())
        self._controller(
            message,
            lambda response: [
                (t.error_code, f"to create the topic {t.name}", t.error_message) for t in response.topics
            ],
            accepted,
        )

    def delete_topics(self, names: Iterable[str], *, missing_ok: bool = False) -> None:
        """Delete topics.

        Raises:
            BrokerError: `topic-missing` unless `missing_ok`; other refusals.
        """
        request = m.delete_topics_request
        message = request.DeleteTopicsRequest(
            topics=tuple(request.DeleteTopicState(name=TopicName(name), topic_id=None) for name in names),
            timeout=from_ms(self.client.request_timeout_ms),
        )
        accepted = {ErrorCode.none} | ({ErrorCode.unknown_topic_or_partition} if missing_ok else set())
        self._controller(
            message,
            lambda response: [
                (t.error_code, f"to delete the topic {t.name}", t.error_message) for t in response.responses
            ],
            accepted,
        )

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Increase topics to these numbers of partitions."""
        request = m.create_partitions_request
        message = request.CreatePartitionsRequest(
            topics=tuple(
                request.CreatePartitionsTopic(name=TopicName(name), count=i32(count), assignments=None)
                for name, count in counts.items()
            ),
            timeout=from_ms(self.client.request_timeout_ms),
            validate_only=False,
        )
        self._controller(
            message,
            lambda response: [
                (t.error_code, f"more partitions for {t.name}", t.error_message) for t in response.results
            ],
        )

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicMetadata]:
        """Return the metadata of topics by name; topics that do not exist are left out."""
        return dict(self.client.metadata(list(names), refresh=True).topics)

    def list_topics(self, *, include_internal: bool = False) -> dict[str, TopicMetadata]:
        """Return all topics by name, sorted."""
        topics = self.client.metadata(None).topics
        return {name: topics[name] for name in sorted(topics) if include_internal or not topics[name].internal}

    # Offsets of the log.

    def list_offsets(
        self,
        positions: Mapping[TopicPartition, str | int],
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return offsets of the log by position.

        Args:
            positions: Partition → `"earliest"`, `"latest"` (the last stable offset under read_committed),
                `"max_timestamp"`, or a time in milliseconds: the first record at or after it, offset -1 without one.
            isolation_level: `read_committed` or `read_uncommitted`.
        """
        # Negative timestamps stand for ends of the log (KIP-734, KIP-1005).
        wanted = {key: _TIMESTAMPS[at] if isinstance(at, str) else at for key, at in positions.items()}
        found = self._at_leaders(
            wanted,
            lambda part: admin_cluster.list_offsets_request(part, isolation_level, self.client.request_timeout_ms),
            lambda response: (
                ((str(t.name), int(p.partition_index)), p.error_code, p) for t in response.topics for p in t.partitions
            ),
            "ListOffsets",
        )
        return {
            key: OffsetAndTimestamp(
                offset=int(found[key].offset),
                timestamp_ms=int(found[key].timestamp),
                leader_epoch=int(found[key].leader_epoch),
            )
            for key in positions
        }

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below these offsets (-1: all) and return the new log start offsets."""
        found = self._at_leaders(
            before,
            lambda part: admin_cluster.delete_records_request(part, self.client.request_timeout_ms),
            lambda response: (
                ((str(t.name), int(p.partition_index)), p.error_code, p) for t in response.topics for p in t.partitions
            ),
            "DeleteRecords",
        )
        return {key: int(found[key].low_watermark) for key in before}

    # Groups. `try_…` returns an outcome per group; the plain form raises the first refusal.

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), protocols: Iterable[str] = ()
    ) -> tuple[GroupListing, ...]:
        """Return the groups of all brokers, sorted by id.

        Args:
            states: Names of states, in any spelling; empty: all.
            types: streams, consumer, classic, share; empty: all.
            protocols: Protocol types; empty: all.
        """
        return admin_groups.list_groups(self.client, states, types, protocols)

    def describe_streams_groups(self, group_ids: Iterable[str]) -> dict[str, StreamsGroupDescription]:
        """Return members, assignments and topology of streams groups. Raises BrokerError `group-missing`."""
        return self.try_describe_streams_groups(group_ids).all()

    def try_describe_streams_groups(self, group_ids: Iterable[str]) -> Outcomes[str, StreamsGroupDescription]:
        """Like `describe_streams_groups`, with one error per group."""
        return admin_groups.describe_streams_groups(self.client, group_ids)

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, ConsumerGroupDescription]:
        """Return classic and consumer groups with their members. Raises BrokerError `group-missing`, `group-kind`."""
        return self.try_describe_consumer_groups(group_ids).all()

    def try_describe_consumer_groups(self, group_ids: Iterable[str]) -> Outcomes[str, ConsumerGroupDescription]:
        """Like `describe_consumer_groups`, with one error per group."""
        return admin_groups.describe_consumer_groups(self.client, group_ids)

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups with their offsets. Raises BrokerError `group-not-empty`, `group-missing`."""
        self.try_delete_groups(group_ids).all()

    def try_delete_groups(self, group_ids: Iterable[str]) -> Outcomes[str, None]:
        """Like `delete_groups`, with one error per group."""
        return admin_groups.delete_groups(self.client, group_ids)

    def removable_members(self, group_id: str) -> tuple[RemovableMember, ...]:
        """Return the members of a group of any type, as `try_remove_members` takes them.

        Raises:
            BrokerError: `group-missing`.
        """
        # The type decides which API knows the members, and only ListGroups has it.
        listed = next((group for group in self.list_groups() if group.group_id == group_id), None)
        if listed is not None and listed.group_type.lower() == "streams":
            streams = self.describe_streams_groups([group_id])[group_id]
            return tuple(
                RemovableMember(member_id=member.member_id, instance_id=member.instance_id, protocol="streams")
                for member in streams.members
            )
        group = self.describe_consumer_groups([group_id])[group_id]
        return tuple(
            RemovableMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                # A classic member of a consumer group (KIP-848, online migration) leaves by LeaveGroup.
                protocol="classic" if member.uses_consumer_protocol is False else group.group_type.lower(),
            )
            for member in group.members
        )

    def remove_members(self, group_id: str, members: Iterable[RemovableMember]) -> None:
        """Remove members from a group of any type, as if each had left. Raises BrokerError for the first refusal."""
        self.try_remove_members(group_id, members).all()

    def try_remove_members(self, group_id: str, members: Iterable[RemovableMember]) -> Outcomes[str, None]:
        """Like `remove_members`, with one error per member id."""
        return remove_members(self.client, group_id, members)

    def committed_offsets(self, group_id: str) -> dict[TopicPartition, int]:
        """Return all committed offsets of a group."""
        return {key: committed.offset for key, committed in self.list_group_offsets(group_id).items()}

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets with leader epoch and metadata; partitions without one are left out.

        Args:
            group_id: The group.
            partitions: None: all that have a committed offset.
            require_stable: Wait for open transactions, until the API timeout (BrokerError `offsets-unstable`).
        """
        found = group_offsets.fetch_committed(self.client, group_id, partitions, require_stable=require_stable)
        return {key: committed for key, committed in found.items() if committed.offset >= 0}

    def alter_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Commit offsets for a group without members; the group is created if it does not exist.

        Raises:
            BrokerError: `member-fenced` if the group has members, `topic-missing`.
        """
        group_offsets.commit_offsets(self.client, group_id, offsets)

    def delete_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> Outcomes[TopicPartition, None]:
        """Delete committed offsets of single partitions.

        Returns:
            One error for each partition whose topic members are subscribed to.

        Raises:
            BrokerError: `group-missing`.
        """
        return admin_groups.delete_offsets(self.client, group_id, partitions)

    # Configurations and features.

    def describe_configs(
        self, resources: Iterable[tuple[ResourceType, str]], *, documentation: bool = False
    ) -> dict[tuple[str, str], dict[str, ConfigEntry]]:
        """Return the effective settings of topics, brokers and groups.

        Args:
            resources: (type, name). A broker's name is its node id; "" stands for the settings changed for all brokers.
            documentation: Whether to include each setting's description.
        """
        return admin_cluster.describe_configs(self.client, resources, documentation=documentation)

    def alter_configs(
        self,
        resource: ResourceType,
        name: str,
        values: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of one resource (IncrementalAlterConfigs).

        Args:
            resource: The type of the resource.
            name: Its name.
            values: Setting → value; None resets it to its default.
            append: Setting → entries to add to a list.
            subtract: Setting → entries to remove from a list.
            validate_only: Check without a change.

        Raises:
            BrokerError: `bad-setting` for an unknown setting or an invalid value.
        """
        self._controller(
            admin_cluster.alter_configs_request(
                resource, name, values, append or {}, subtract or {}, validate_only=validate_only
            ),
            lambda response: [
                (r.error_code, f"to alter the settings of {resource} {name}".rstrip(), r.error_message)
                for r in response.responses
            ],
            node=admin_cluster.node_of(resource, name),
        )

    def list_config_resources(self, kinds: Iterable[ResourceType] = ()) -> tuple[tuple[str, str], ...]:
        """Return (type, name) of all resources with settings; groups only if a setting was changed."""
        return admin_cluster.list_config_resources(self.client, kinds)

    def describe_features(self, *, node: int | None = None) -> dict[str, FeatureDescription]:
        """Return the supported and finalised levels of features by name."""
        return admin_cluster.describe_features(self.client, node=node)

    def update_features(
        self, levels: Mapping[str, int], *, upgrade_type: UpgradeType = "upgrade", validate_only: bool = False
    ) -> None:
        """Finalise these levels, all or none; level 0 disables a feature.

        Raises:
            BrokerError: A level is not supported, or a downgrade is unsafe.
        """
        message = admin_cluster.update_features_request(self.client, levels, upgrade_type, validate_only=validate_only)
        self._controller(message, admin_cluster.feature_outcomes)

    # Routing of requests.

    def _controller(
        self,
        request: RequestMessage,
        outcomes: Callable[[Response], list[tuple[ErrorCode, str, str | None]]],
        accepted: frozenset[ErrorCode] | set[ErrorCode] = frozenset({ErrorCode.none}),
        *,
        node: int | None = None,
    ) -> None:
        """Send a request to the controller's broker, or to `node`.

        In KRaft any broker forwards it to the active controller, so a moved controller costs one retry.
        """
        deadline = Deadline.after_ms(self.client.api_timeout_ms)
        backoff = Backoff()
        while True:
            response = self.client.call(request, node=self.client.metadata(()).controller if node is None else node)
            refused = [outcome for outcome in outcomes(response) if outcome[0] not in accepted]
            if not refused:
                return
            code, what, message = refused[0]
            if code != ErrorCode.not_controller or deadline.passed:
                raise refusal(code, what, api=type(request).__name__.removesuffix("RequestMessage"), message=message)
            self.client.metadata((), refresh=True)
            backoff.pause(deadline)

    def _at_leaders(
        self,
        wanted: Mapping[TopicPartition, int],
        request_for: Callable[[Mapping[TopicPartition, int]], RequestMessage],
        entries: Callable[[Response], Iterable[tuple[TopicPartition, ErrorCode, Entry]]],
        api: str,
    ) -> dict[TopicPartition, Entry]:
        """Send one request per leader, all at the same time, and repeat those whose leader moved or did not answer."""
        deadline = Deadline.after_ms(self.client.api_timeout_ms)
        backoff = Backoff()
        found: dict[TopicPartition, Entry] = {}
        left = dict(wanted)
        refresh = False
        while left:
            leaders = self.client.leaders(left, refresh=refresh)
            # 1. One request per leader, all in flight at the same time.
            by_node: dict[int, dict[TopicPartition, int]] = {}
            for key, value in left.items():
                by_node.setdefault(leaders[key], {})[key] = value
            told = self.client.attempt_all([(node, request_for(part)) for node, part in by_node.items()])
            # 2. A leader that does not answer may be dead: its partitions stay in `left`, and the next turn reads new
            #    leaders.
            lost = [each for each in told if isinstance(each, ConnectionLost)]
            if lost and deadline.passed:
                raise self.client.unreachable(lost[0])
            responses = (each for each in told if not isinstance(each, ConnectionLost))
            for key, code, entry in (item for response in responses for item in entries(response)):
                # 3. Each partition has its own outcome; the first final refusal ends the call, because results are all
                #    or nothing.
                if code == ErrorCode.none:
                    found[key] = entry
                    left.pop(key, None)
                elif (code not in STALE_METADATA and not is_retriable(code)) or deadline.passed:
                    raise refusal(code, f"{api} of {key[0]}-{key[1]}", api=api, topic=key[0], partition=key[1])
            if left:
                refresh = True
                backoff.pause(deadline)
        return found
