"""A shard with what a broker does around it, in one thread: append (as bytes), replay, timers. Speaks the domain.

`context.join("m1")`, `context.heartbeat("m1", 2, active={"0": (0, 1)})`, `context.sleep(3_000)`: a test names only what
matters. The log is kept as bytes, so that a restart reads what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult, CreatableTopic
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import (
    offset_commit_request,
    offset_delete_request,
    offset_fetch_request,
)
from headrace.protocol.messages import streams_group_heartbeat_request as m

Tasks = Mapping[str, Iterable[int]]
START_MS = 1_000_000


def subtopology(
    subtopology_id: str = "0",
    *,
    sources: Iterable[str] = ("in",),
    changelogs: Iterable[str] = (),
    sinks: Iterable[str] = (),
    repartitions: Iterable[str | tuple[str, int]] = (),
    copartitions: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
    regex: Iterable[str] = (),
) -> m.Subtopology:
    """Repartition sources are names, or (name, partitions); copartition groups are (source, repartition) indices."""
    named = [(each, 0) if isinstance(each, str) else each for each in repartitions]
    return m.Subtopology(
        subtopology_id=subtopology_id,
        source_topics=tuple(sources),
        source_topic_regex=tuple(regex),
        state_changelog_topics=tuple(topic_info(name) for name in changelogs),
        repartition_sink_topics=tuple(sinks),
        repartition_source_topics=tuple(topic_info(name, partitions) for name, partitions in named),
        copartition_groups=tuple(
            m.CopartitionGroup(source_topics=external, repartition_source_topics=internal)
            for external, internal in copartitions
        ),
    )


def topic_info(name: str, partitions: int = 0, configs: Iterable[tuple[str, str]] = ()) -> m.TopicInfo:
    return m.TopicInfo(
        name=name,
        partitions=partitions,
        replication_factor=0,
        topic_configs=tuple(m.KeyValue(key=key, value=value) for key, value in configs),
    )


def topology(*subtopologies: m.Subtopology, epoch: int = 0) -> m.Topology:
    return m.Topology(epoch=epoch, subtopologies=subtopologies or (subtopology(),))


STATELESS = topology()
STATEFUL = topology(subtopology(changelogs=("cl",)))


def task_ids(tasks: Tasks | None) -> tuple[m.TaskIds, ...] | None:
    if tasks is None:
        return None
    return tuple(m.TaskIds(subtopology_id=name, partitions=tuple(tasks[name])) for name in sorted(tasks))


def task_offsets(offsets: Mapping[tuple[str, int], int] | None) -> tuple[m.TaskOffset, ...] | None:
    if offsets is None:
        return None
    return tuple(
        m.TaskOffset(subtopology_id=name, partition=partition, offset=offset)
        for (name, partition), offset in offsets.items()
    )


def plain(tasks: Iterable[Any] | None) -> dict[str, tuple[int, ...]] | None:
    """Task lists of a reply as {subtopology: partitions}."""
    return None if tasks is None else {each.subtopology_id: tuple(each.partitions) for each in tasks}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a request brought: the reply, the records, the topics asked for."""

    response: Any
    records: tuple[CoordinatorRecord, ...]
    topics_to_create: tuple[CreatableTopic, ...] = ()

    @property
    def active(self) -> dict[str, tuple[int, ...]] | None:
        return plain(self.response.active_tasks)

    @property
    def standby(self) -> dict[str, tuple[int, ...]] | None:
        return plain(self.response.standby_tasks)

    @property
    def epoch(self) -> int:
        return int(self.response.member_epoch)

    @property
    def statuses(self) -> list[int]:
        return [int(status.status_code) for status in self.response.status]

    @property
    def record_names(self) -> list[str]:
        """Key classes without prefix and suffix, "!" behind a tombstone."""
        names = (type(record.key).__name__.removeprefix("StreamsGroup").removesuffix("Key") for record in self.records)
        return [name + ("!" if record.value is None else "") for name, record in zip(names, self.records, strict=True)]


@dataclass
class CoordinatorContext:
    """`settings` are Kafka's names; defaults here have neither an initial delay nor an assignment interval."""

    topics: Mapping[str, int] = field(default_factory=lambda: {"in": 4})
    settings: Mapping[str, object] = field(default_factory=dict)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        defaults = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
        self.configuration = GroupCoordinatorConfiguration.from_settings({**defaults, **self.settings})
        self.image = _image(self.topics, version=1)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.shard = GroupCoordinatorShard(0, self.configuration, self.image)

    # --- requests ---

    def join(self, member_id: str, **given: Any) -> Outcome:
        empty: Tasks = {}
        values = {"topology": STATELESS, "rebalance_timeout_ms": 1_500, "process_id": f"p-{member_id}"}
        return self.heartbeat(member_id, 0, **{"active": empty, "client_tags": (), **values, **given})

    def leave(self, member_id: str, **given: Any) -> Outcome:
        return self.heartbeat(member_id, -1, **given)

    def heartbeat(self, member_id: str, epoch: int, *, api_version: int = 0, **given: Any) -> Outcome:
        request = self.request(member_id, epoch, **given)
        context = self.context(api_version=api_version, host=given.get("host", "/127.0.0.1"))
        return self.apply(self.shard.streams_group_heartbeat(request, context, now_ms=self.now_ms))

    def request(
        self,
        member_id: str,
        epoch: int,
        *,
        group_id: str = "g",
        active: Tasks | None = None,
        standby: Tasks | None = None,
        warmup: Tasks | None = None,
        rebalance_timeout_ms: int = -1,
        endpoint: tuple[str, int] | None = None,
        client_tags: Iterable[tuple[str, str]] | None = None,
        shutdown: bool = False,
        host: str = "",
        **given: Any,
    ) -> m.StreamsGroupHeartbeatRequest:
        """`active` alone means that the other roles are owned as empty."""
        values: dict[str, Any] = {
            "task_offsets": task_offsets(given.pop("offsets", None)),
            "task_end_offsets": task_offsets(given.pop("end_offsets", None)),
            "endpoint_information_epoch": -1,
            "active_tasks": task_ids(active),
            "standby_tasks": task_ids({} if standby is None and active is not None else standby),
            "warmup_tasks": task_ids({} if warmup is None and active is not None else warmup),
            "client_tags": None if client_tags is None else tuple(m.KeyValue(key=k, value=v) for k, v in client_tags),
            "user_endpoint": None if endpoint is None else m.Endpoint(host=endpoint[0], port=endpoint[1]),
        }
        return m.StreamsGroupHeartbeatRequest(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout=from_ms(rebalance_timeout_ms),
            shutdown_application=shutdown,
            **{**values, **given},
        )

    def commit(
        self, offsets: Mapping[tuple[str, int], int], member_id: str = "", epoch: int = -1, **given: Any
    ) -> dict[tuple[str, int], str]:
        """Error names by partition."""
        metadata = given.get("metadata", "")
        request = offset_commit_request.OffsetCommitRequest(
            group_id=given.get("group_id", "g"),
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=tuple(
                offset_commit_request.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=(
                        offset_commit_request.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        ),
                    ),
                )
                for (topic, partition), offset in offsets.items()
            ),
        )
        context = self.context(api_version=given.get("api_version", 9))
        outcome = self.apply(self.shard.offset_commit(request, context, now_ms=self.now_ms))
        return {
            (topic.name, int(partition.partition_index)): partition.error_code.name
            for topic in outcome.response.topics
            for partition in topic.partitions
        }

    def fetch(self, partitions: Iterable[tuple[str, int]] | None, **given: Any) -> dict[tuple[str, int], int]:
        topics = None
        if partitions is not None:
            topics = tuple(
                offset_fetch_request.OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
                for topic, partition in partitions
            )
        request = offset_fetch_request.OffsetFetchRequestGroup(
            group_id=given.get("group_id", "g"),
            member_id=given.get("member_id"),
            member_epoch=given.get("epoch", -1),
            topics=topics,
        )
        reply = self.shard.offset_fetch(request, self.context(api_version=9))
        return {
            (topic.name, int(each.partition_index)): int(each.committed_offset)
            for topic in reply.topics
            for each in topic.partitions
        }

    def delete_offsets(self, partitions: Iterable[tuple[str, int]], group_id: str = "g") -> dict[str, str]:
        request = offset_delete_request.OffsetDeleteRequest(
            group_id=group_id,
            topics=tuple(
                offset_delete_request.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=(offset_delete_request.OffsetDeleteRequestPartition(partition_index=partition),),
                )
                for topic, partition in partitions
            ),
        )
        outcome = self.apply(self.shard.offset_delete(request, self.context(), now_ms=self.now_ms))
        return {topic.name: topic.partitions[0].error_code.name for topic in outcome.response.topics}

    def delete_groups(self, *group_ids: str) -> dict[str, str]:
        outcome = self.apply(self.shard.delete_groups(group_ids, self.context(), now_ms=self.now_ms))
        return {each.group_id: each.error_code.name for each in outcome.response.results}

    def describe(self, group_id: str = "g") -> Any:
        return self.shard.streams_group_describe([group_id], self.context())[0]

    def state(self, group_id: str = "g") -> str:
        return str(self.describe(group_id).group_state)

    # --- what happens around requests ---

    def sleep(self, duration_ms: int) -> list[CoordinatorRecord]:
        """Time passes; timers fire at their deadlines, in order. The records they brought."""
        end_ms = self.now_ms + duration_ms
        records: list[CoordinatorRecord] = []
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            for result in self.shard.on_timers(now_ms=self.now_ms):
                records.extend(self.apply(result).records)
        self.now_ms = end_ms
        return records

    def set_topics(self, topics: Mapping[str, int], *, renewed: Iterable[str] = ()) -> list[CoordinatorRecord]:
        """A new image; `renewed` topics get a new id. The records it brought."""
        self.topics = dict(topics)
        self.image = _image(topics, version=self.image.version + 1, before=self.image, renewed=frozenset(renewed))
        records: list[CoordinatorRecord] = []
        for result in self.shard.on_metadata_image(self.image, now_ms=self.now_ms):
            records.extend(self.apply(result).records)
        return records

    def set_group_settings(self, settings: Mapping[str, str], group_id: str = "g") -> list[CoordinatorRecord]:
        """The group's own settings from now on. The records they brought."""
        self.configuration = self.configuration.with_group_settings(group_id, settings)
        records: list[CoordinatorRecord] = []
        for result in self.shard.on_configuration(self.configuration, now_ms=self.now_ms):
            records.extend(self.apply(result).records)
        return records

    def restart(self) -> None:
        """The shard is lost; a new one reads the log."""
        self.shard = self.replayed()
        self.apply(self.shard.on_loaded(now_ms=self.now_ms))

    def replayed(self) -> GroupCoordinatorShard:
        shard = GroupCoordinatorShard(0, self.configuration, self.image)
        for key, value in self.log:
            record = serde.decode(key, value)
            assert record is not None
            shard.replay(record)
        return shard

    def apply(self, result: CoordinatorResult) -> Outcome:
        for record in result.records:
            self.log.append(
                (serde.encode_key(record.key), None if record.value is None else serde.encode_value(record.value))
            )
        for record in result.records:
            self.shard.replay(record)
        if result.soft is not None:
            result.soft()
        self.shard.apply_timers(result.timers)
        response = result.replies[0].response if result.replies else None
        return Outcome(response=response, records=result.records, topics_to_create=result.topics_to_create)

    def context(self, *, api_version: int = 0, host: str = "/127.0.0.1") -> RequestContext:
        return RequestContext(token=1, client_id="c", client_host=host, api_version=api_version)


def _image(
    topics: Mapping[str, int],
    *,
    version: int,
    before: MetadataImage | None = None,
    renewed: frozenset[str] = frozenset(),
) -> MetadataImage:
    images = {}
    for number, (name, partitions) in enumerate(topics.items()):
        known = None if before is None or name in renewed else before.topics.get(name)
        topic_id = UUID(int=version << 64 | number + 1) if known is None else known.topic_id
        images[name] = TopicImage(name=name, topic_id=topic_id, partitions=partitions)
    return MetadataImage(version=version, topics=images)
