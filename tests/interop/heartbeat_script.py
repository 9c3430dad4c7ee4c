"""A script of group requests that is played to any broker, and everything it answered in comparable form.

`Script` speaks exact versions over one connection and plays members: it remembers each member's epoch and tasks as a
client would. Each named step is recorded as flat fields; what a run decides (ids, times, the token in names) is left
out or put back to the script's own words. Two recordings are compared field by field with `differences`.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.harness.polling import wait_until
from tests.interop.heartbeat_words import (
    Connection,
    ConnectionClosed,
    Tasks,
    described_member,
    described_topology,
    endpoints,
    h,
    plain,
    subtopology,
    task_ids,
    topic,
    topology,
)

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.kio_units import from_ms, to_ms
from headrace.protocol.partitioner import partition_for_group

__all__ = ["ALL", "Difference", "Recording", "Script", "differences", "subtopology", "topic", "topology"]

Recording = dict[str, dict[str, object]]
Difference = tuple[str, str]  # (step, field)
PROBE = "probe"
MISSING_SOURCE_TOPICS = 1
ALL: Tasks = {"all": ()}
GROUP_RESOURCE, TOPIC_RESOURCE, SET = 32, 2, 0


def differences(one: Recording, other: Recording) -> dict[Difference, tuple[object, object]]:
    """Every (step, field) in which two recordings differ, with both values; ABSENT where one lacks it."""
    found = {}
    for step in {**one, **other}:
        mine, theirs = one.get(step, {}), other.get(step, {})
        for name in {**mine, **theirs}:
            values = mine.get(name, "ABSENT"), theirs.get(name, "ABSENT")
            if values[0] != values[1]:
                found[step, name] = values
    return found


class Script:
    """Mutable: members' epochs and tasks as their last replies said, and the recording so far.

    `token` is in the names of all topics and of the group, so that a shared broker can be used; recordings lack it.
    """

    def __init__(self, port: int, scenario: str, token: str, *, heartbeat_version: int = 0) -> None:
        self._port = port
        self._connection = Connection(port)
        self._heartbeat_version = heartbeat_version
        self._token = f"{scenario}-{token}."
        self.group_id = self.name("group")
        self.recording: Recording = {}
        self.epochs: dict[str, int] = {}
        self.tasks: dict[str, dict[str, dict[str, tuple[int, ...]]]] = {}
        self._endpoint_epochs: dict[str, int] = {}

    def close(self) -> None:
        self._connection.close()

    def name(self, name: str) -> str:
        return self._token + name

    def topic(self, name: str, partitions: int = 0, **configs: str) -> Any:
        return topic(self.name(name), partitions, **configs)

    def source(self, *names: str, changelogs: Iterable[str] = ()) -> Any:
        """The plainest topology: one subtopology "0"."""
        logs = [self.topic(name) for name in changelogs]
        return topology(subtopology("0", [self.name(name) for name in names], changelogs=logs))

    # Heartbeats.

    def join(self, step: str, member: str, given: Any, **fields: Any) -> Any:
        """The process is named like the member. Single letters: Kafka's assignor breaks ties by a Java hash map's order
        of processes, which is then ours."""
        self._endpoint_epochs.pop(member, None)
        request = {"epoch": 0, "topology": given, "owned": {}, "rebalance_timeout_ms": 60_000, "process": member}
        return self.beat(step, member, **{**request, **fields})

    def beat(self, step: str, member: str, **fields: Any) -> Any:
        """`owned`: None says nothing, ALL what the member has, else active tasks; `epoch` defaults to the member's."""
        answer = self._heartbeat(member, **fields)
        self._record(step, self._heard(answer))
        return answer

    def survive(self, step: str, play: Callable[[], Any]) -> None:
        """Plays the step, and goes on when it costs the connection."""
        try:
            play()
        except ConnectionClosed:
            self._connection.close()
            self._connection = Connection(self._port)
            self._record(step, {"error": "closed"})

    def leave(self, step: str, member: str, **fields: Any) -> Any:
        return self.beat(step, member, **{"epoch": -1, **fields})

    def beat_until(self, step: str, member: str, condition: Callable[[Any], bool], **fields: Any) -> None:
        """Beats until an answer fits, records what the member has then: how many beats it took is not compared."""

        def beat() -> Any:
            answer = self._heartbeat(member, **fields)
            return answer if condition(answer) else None

        answer = wait_until(beat, step)
        heard = self._heard(answer)
        for role in ("active", "standby", "warmup"):
            heard[role] = self.tasks[member][role]
        self._record(step, heard)

    def beat_quietly(self, member: str) -> None:
        """A beat that is not recorded."""
        self._heartbeat(member)

    @staticmethod
    def pause_ms(duration_ms: int) -> None:
        """For what must not happen meanwhile, or happens on one side only: there is nothing to wait for."""
        time.sleep(duration_ms / 1000)

    def owns(self, member: str, role: str = "active") -> int:
        return sum(map(len, self.tasks.get(member, {}).get(role, {}).values()))

    def _heartbeat(self, member: str, **fields: Any) -> Any:
        request = self._request(member, **fields)
        answer = self._connection.call(ApiKey.STREAMS_GROUP_HEARTBEAT, self._heartbeat_version, request)
        if answer.error_code is ErrorCode.none and answer.member_epoch >= 0:
            self.epochs[member] = answer.member_epoch
            self._endpoint_epochs[member] = answer.endpoint_information_epoch
            known = self.tasks.setdefault(member, {})
            for role in ("active", "standby", "warmup"):
                given = getattr(answer, f"{role}_tasks")
                if given is not None:
                    known[role] = plain(given)
        return answer

    def _request(
        self,
        member: str,
        *,
        epoch: int | None = None,
        owned: Tasks | None = None,
        topology: Any = None,
        rebalance_timeout_ms: int = -1,
        process: str | None = None,
        **fields: Any,
    ) -> Any:
        mine = self.tasks.get(member, {})
        lists = {
            f"{role}_tasks": task_ids(mine.get(role, {}) if owned is ALL else owned if role == "active" else {})
            if owned is not None
            else None
            for role in ("active", "standby", "warmup")
        }
        settings = {
            "group_id": self.group_id,
            "member_id": member,
            "member_epoch": self.epochs.get(member, 0) if epoch is None else epoch,
            "endpoint_information_epoch": self._endpoint_epochs.get(member, -1),
            "rebalance_timeout": from_ms(rebalance_timeout_ms),
            "topology": topology,
            "process_id": process,
            "client_tags": None,
            "task_offsets": None,
            "task_end_offsets": None,
        }
        return h.StreamsGroupHeartbeatRequest(**{**settings, **lists, **fields})

    def _heard(self, answer: Any) -> dict[str, object]:
        if answer.error_code is not ErrorCode.none:
            return {"error": kafka_name(answer.error_code), "message": answer.error_message}
        return {
            "error": "NONE",
            "message": answer.error_message,
            "member": answer.member_id,
            "epoch": answer.member_epoch,
            "interval": to_ms(answer.heartbeat_interval),
            "offset interval": to_ms(answer.task_offset_interval),
            "lag": answer.acceptable_recovery_lag,
            "status": [each.status_code for each in answer.status or ()],
            "status details": [self._detail(each.status_detail) for each in answer.status or ()],
            "active": plain(answer.active_tasks),
            "standby": plain(answer.standby_tasks),
            "warmup": plain(answer.warmup_tasks),
            "endpoints": endpoints(answer.partitions_by_user_endpoint),
        }

    def _detail(self, detail: str) -> str:
        """Kafka names missing internal topics in the order of a hash map: sorted here, and counted where it picks
        three of them."""
        found = re.match(r"(Internal topics are missing: )([^ ,;]+(?:, [^ ,;]+)*)( and)?", detail)
        if found is None:
            return detail
        names = sorted(found[2].split(", "))
        listed = f"{len(names)} topics" if found[3] else ", ".join(names)
        return found[1] + listed + detail[found.end(2) :]

    # Other requests about groups.

    def describe(self, step: str, group_id: str | None = None) -> None:
        self._record(step, self._described(group_id))

    def describe_until(self, step: str, condition: Callable[[dict[str, Any]], bool]) -> None:
        def described() -> Any:
            seen = self._described(None)
            return seen if condition(seen) else None

        self._record(step, wait_until(described, step))

    def group_epoch(self) -> object:
        """As described now. Kafka hears of settings a moment later, and acts on them at a heartbeat."""
        return self._described(None)["group epoch"]

    def _described(self, group_id: str | None) -> dict[str, Any]:
        request = m.streams_group_describe_request.StreamsGroupDescribeRequest(
            group_ids=(group_id or self.group_id,), include_authorized_operations=False
        )
        (group,) = self._connection.call(ApiKey.STREAMS_GROUP_DESCRIBE, 0, request).groups
        seen: dict[str, Any] = {
            "error": kafka_name(group.error_code),
            "message": group.error_message,
            "state": group.group_state,
            "group epoch": group.group_epoch,
            "assignment epoch": group.assignment_epoch,
            "topology": None if group.topology is None else described_topology(group.topology),
            "members": sorted(member.member_id for member in group.members),
        }
        for member in group.members:
            for name, value in described_member(member).items():
                seen[f"{member.member_id}: {name}"] = value
        return seen

    def describe_classic(self, step: str, version: int) -> None:
        request = m.describe_groups_request.DescribeGroupsRequest(
            groups=(self.group_id,), include_authorized_operations=False
        )
        (group,) = self._connection.call(ApiKey.DESCRIBE_GROUPS, version, request).groups
        seen = {"error": kafka_name(group.error_code), "state": group.group_state, "protocol": group.protocol_type}
        self._record(step, {**seen, "message": group.error_message, "members": len(group.members)})

    def list_groups(self, step: str, *states: str, types: Iterable[str] = ()) -> None:
        """Only whether this script's group is listed, and how."""
        request = m.list_groups_request.ListGroupsRequest(states_filter=states, types_filter=tuple(types))
        answer = self._connection.call(ApiKey.LIST_GROUPS, 5, request)
        listed = [
            (group.protocol_type, group.group_state, group.group_type)
            for group in answer.groups
            if group.group_id == self.group_id
        ]
        self._record(step, {"error": kafka_name(answer.error_code), "listed": listed})

    def commit(
        self,
        step: str,
        member: str,
        offsets: Mapping[tuple[str, int], int],
        *,
        epoch: int | None = None,
        metadata: str = "",
        version: int = 9,
    ) -> None:
        c = m.offset_commit_request
        topics: dict[str, list[Any]] = {}
        for (name, partition), offset in offsets.items():
            topics.setdefault(name, []).append(
                c.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = c.OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.epochs.get(member, -1) if epoch is None else epoch,
            member_id=member,
            topics=tuple(
                c.OffsetCommitRequestTopic(name=self.name(name), topic_id=None, partitions=tuple(parts))
                for name, parts in topics.items()
            ),
        )
        answer = self._connection.call(ApiKey.OFFSET_COMMIT, version, request)
        seen = {
            f"{each.name}-{part.partition_index}": kafka_name(part.error_code)
            for each in answer.topics
            for part in each.partitions
        }
        self._record(step, dict(seen))

    def fetch(
        self,
        step: str,
        topics: Mapping[str, Iterable[int]] | None,
        *,
        member: str | None = None,
        epoch: int = -1,
        group_id: str | None = None,
        version: int = 9,
    ) -> None:
        f = m.offset_fetch_request
        wanted = None
        if topics is not None:
            wanted = tuple(
                f.OffsetFetchRequestTopics(name=self.name(name), topic_id=None, partition_indexes=tuple(partitions))
                for name, partitions in topics.items()
            )
        group = f.OffsetFetchRequestGroup(
            group_id=group_id or self.group_id, member_id=member, member_epoch=epoch, topics=wanted
        )
        (answer,) = self._connection.call(ApiKey.OFFSET_FETCH, version, f.OffsetFetchRequest(groups=(group,))).groups
        seen: dict[str, object] = {"error": kafka_name(answer.error_code)}
        for each in answer.topics:
            for part in each.partitions:
                code = kafka_name(part.error_code)
                what = (part.committed_offset, part.committed_leader_epoch, part.metadata, code)
                seen[f"{each.name}-{part.partition_index}"] = what
        self._record(step, seen)

    def delete_offsets(self, step: str, topics: Mapping[str, Iterable[int]]) -> None:
        d = m.offset_delete_request
        request = d.OffsetDeleteRequest(
            group_id=self.group_id,
            topics=tuple(
                d.OffsetDeleteRequestTopic(
                    name=self.name(name),
                    partitions=tuple(d.OffsetDeleteRequestPartition(partition_index=index) for index in partitions),
                )
                for name, partitions in topics.items()
            ),
        )
        answer = self._connection.call(ApiKey.OFFSET_DELETE, 0, request)
        seen: dict[str, object] = {"error": kafka_name(answer.error_code)}
        for each in answer.topics:
            for part in each.partitions:
                seen[f"{each.name}-{part.partition_index}"] = kafka_name(part.error_code)
        self._record(step, seen)

    def delete_group(self, step: str, group_id: str | None = None) -> None:
        request = m.delete_groups_request.DeleteGroupsRequest(groups_names=(group_id or self.group_id,))
        answer = self._connection.call(ApiKey.DELETE_GROUPS, 2, request)
        self._record(step, {"error": [kafka_name(result.error_code) for result in answer.results]})

    # Topics, and a group's settings.

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Made, and in the metadata, when it returns."""
        c = m.create_topics_request
        request = c.CreateTopicsRequest(
            topics=tuple(
                c.CreatableTopic(
                    name=self.name(name), num_partitions=count, replication_factor=1, assignments=(), configs=()
                )
                for name, count in topics.items()
            )
        )
        answer = self._connection.call(ApiKey.CREATE_TOPICS, 7, request)
        assert all(each.error_code is ErrorCode.none for each in answer.topics), answer
        self.await_partitions(topics)

    def prepare(self, topics: Mapping[str, int], configs: Mapping[str, object] | None = None) -> None:
        """Before the first step: the coordinator is there and knows these topics and, on Kafka, the group's configs.

        A broker tells its coordinator last. So another group of the same shard asks until a topic is known there.
        """
        if configs:
            self.set_group_configs(configs)
        self.create_topics({**topics, PROBE: 1})
        partition = partition_for_group(self.group_id)
        names = (f"{self.group_id}-{PROBE}-{number}" for number in itertools.count())
        other = next(name for name in names if partition_for_group(name) == partition)
        f = m.find_coordinator_request
        request = f.FindCoordinatorRequest(key_type=0, coordinator_keys=(other,))

        def is_known() -> bool:
            self._connection.call(ApiKey.FIND_COORDINATOR, 4, request)
            fields = {"group_id": other, "owned": {}, "rebalance_timeout_ms": 1_000, "process": PROBE}
            answer = self._heartbeat(PROBE, epoch=0, topology=self.source(PROBE), **fields)
            if answer.error_code is not ErrorCode.none:
                return False  # the coordinator is not there yet
            return all(status.status_code != MISSING_SOURCE_TOPICS for status in answer.status)

        wait_until(is_known, "the coordinator knows the topics")
        self._heartbeat(PROBE, epoch=-1, group_id=other)

    def grow_topic(self, name: str, partitions: int) -> None:
        c = m.create_partitions_request
        grown = c.CreatePartitionsTopic(name=self.name(name), count=partitions, assignments=None)
        request = c.CreatePartitionsRequest(topics=(grown,), timeout=from_ms(10_000), validate_only=False)
        answer = self._connection.call(ApiKey.CREATE_PARTITIONS, 3, request)
        assert all(each.error_code is ErrorCode.none for each in answer.results), answer

    def delete_topic(self, name: str) -> None:
        d = m.delete_topics_request
        state = d.DeleteTopicState(name=self.name(name), topic_id=None)
        request = d.DeleteTopicsRequest(topics=(state,), timeout=from_ms(10_000))
        answer = self._connection.call(ApiKey.DELETE_TOPICS, 6, request)
        assert all(each.error_code is ErrorCode.none for each in answer.responses), answer

    def await_partitions(self, topics: Mapping[str, int]) -> None:
        wait_until(lambda: self._partitions(topics) == dict(topics), "topics in the metadata")

    def describe_topics(self, step: str, names: Iterable[str], *configs: str) -> None:
        """Partition counts and the named configs."""
        seen: dict[str, object] = dict(self._partitions(names))
        d = m.describe_configs_request
        resources = tuple(
            d.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=self.name(name), configuration_keys=configs
            )
            for name in names
        )
        if not configs:
            self._record(step, seen)
            return
        answer = self._connection.call(ApiKey.DESCRIBE_CONFIGS, 4, d.DescribeConfigsRequest(resources=resources))
        for result in answer.results:
            for config in result.configs:
                seen[f"{result.resource_name} {config.name}"] = config.value
        self._record(step, seen)

    def set_group_configs(self, configs: Mapping[str, object]) -> None:
        """The group's own settings."""
        a = m.incremental_alter_configs_request
        changes = tuple(
            a.AlterableConfig(name=name, config_operation=SET, value=str(value)) for name, value in configs.items()
        )
        resource = a.AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=self.group_id, configs=changes)
        request = a.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
        answer = self._connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert all(each.error_code is ErrorCode.none for each in answer.responses), answer

    def _partitions(self, names: Iterable[str]) -> dict[str, int]:
        r = m.metadata_request
        wanted = tuple(r.MetadataRequestTopic(topic_id=None, name=self.name(name)) for name in names)
        request = r.MetadataRequest(
            topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self._connection.call(ApiKey.METADATA, 12, request)
        return {
            str(each.name).removeprefix(self._token): len(each.partitions)
            for each in answer.topics
            if each.error_code is ErrorCode.none
        }

    # Recording.

    def _record(self, step: str, seen: Mapping[str, object]) -> None:
        assert step not in self.recording, f"two steps are called {step!r}"
        self.recording[step] = {self._own_words(name): self._own_words(value) for name, value in seen.items()}

    def _own_words(self, value: Any) -> Any:
        """The value without the run's token."""
        if isinstance(value, str):
            return str(value).replace(self._token, "")
        if isinstance(value, bytes):
            return value.replace(self._token.encode(), b"")
        if isinstance(value, dict):
            return {self._own_words(key): self._own_words(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._own_words(each) for each in value)
        return value
