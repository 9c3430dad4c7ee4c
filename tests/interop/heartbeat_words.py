"""Requests of streams groups in few words, their answers as plain values, and a connection that sends them."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from tests.harness.wire import read_frame

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import decode_response, encode_request

Tasks = Mapping[str, Iterable[int]]
PATIENCE_S = 60.0

h = m.streams_group_heartbeat_request


def topic(name: str, partitions: int = 0, **configs: str) -> Any:
    """An internal topic; config names with `_` for `.`."""
    pairs = tuple(h.KeyValue(key=key.replace("_", "."), value=value) for key, value in configs.items())
    return h.TopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=pairs)


def subtopology(
    name: str = "0",
    sources: Iterable[str] = (),
    *,
    changelogs: Iterable[Any] = (),
    sinks: Iterable[str] = (),
    repartitions: Iterable[Any] = (),
    copartitions: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
    regex: Iterable[str] = (),
) -> Any:
    """Copartition groups are (source, repartition source) indices."""
    return h.Subtopology(
        subtopology_id=name,
        source_topics=tuple(sources),
        source_topic_regex=tuple(regex),
        state_changelog_topics=tuple(changelogs),
        repartition_sink_topics=tuple(sinks),
        repartition_source_topics=tuple(repartitions),
        copartition_groups=tuple(
            h.CopartitionGroup(source_topics=external, repartition_source_topics=internal)
            for external, internal in copartitions
        ),
    )


def topology(*subtopologies: Any, epoch: int = 0) -> Any:
    return h.Topology(epoch=epoch, subtopologies=subtopologies)


class ConnectionClosed(AssertionError):
    """By the broker, instead of an answer."""


class Connection:
    """One blocking connection that speaks the version it is told."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._correlation_id = 0

    def call(self, api_key: ApiKey, version: int, request: object) -> Any:
        self.send(api_key, version, request)
        return self.answer(api_key, version)

    def send(self, api_key: ApiKey, version: int, request: object, *, client_id: str = "script") -> None:
        self._correlation_id += 1
        self._socket.sendall(encode_request(api_key, version, self._correlation_id, client_id, request))

    @property
    def has_answer(self) -> bool:
        """Whether the next answer, or its beginning, is there."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def answer(self, api_key: ApiKey, version: int) -> Any:
        """To the last request."""
        try:
            frame = read_frame(self._socket)
        except EOFError as error:
            raise ConnectionClosed(str(error)) from error
        correlation_id, response = decode_response(api_key, version, frame)
        assert correlation_id == self._correlation_id
        return response

    def close(self) -> None:
        self._socket.close()


def plain(tasks: Any) -> Any:
    """{subtopology: partitions in order}."""
    return None if tasks is None else {each.subtopology_id: tuple(sorted(each.partitions)) for each in tasks}


def task_ids(tasks: Tasks) -> Any:
    return tuple(h.TaskIds(subtopology_id=name, partitions=tuple(tasks[name])) for name in sorted(tasks))


def endpoints(endpoints: Any) -> object:
    if endpoints is None:
        return None
    return sorted(
        (
            f"{each.user_endpoint.host}:{each.user_endpoint.port}",
            {part.topic: tuple(sorted(part.partitions)) for part in each.active_partitions},
            {part.topic: tuple(sorted(part.partitions)) for part in each.standby_partitions},
        )
        for each in endpoints
    )


def described_topology(given: Any) -> object:
    def topics(infos: Any) -> list[object]:
        return [
            (info.name, info.partitions, info.replication_factor, {kv.key: kv.value for kv in info.topic_configs})
            for info in infos
        ]

    return (
        given.epoch,
        [
            (
                each.subtopology_id,
                list(each.source_topics),
                list(each.repartition_sink_topics),
                topics(each.state_changelog_topics),
                topics(each.repartition_source_topics),
            )
            for each in given.subtopologies or ()
        ],
    )


def _by_task(offsets: Any) -> object:
    return {f"{each.subtopology_id}-{each.partition}": each.offset for each in offsets}


def described_member(member: Any) -> dict[str, object]:
    endpoint = member.user_endpoint
    return {
        "epoch": member.member_epoch,
        "instance": member.instance_id,
        "rack": member.rack_id,
        "client": (member.client_id, member.client_host),
        "topology epoch": member.topology_epoch,
        "process": member.process_id,
        "endpoint": None if endpoint is None else f"{endpoint.host}:{endpoint.port}",
        "tags": {tag.key: tag.value for tag in member.client_tags},
        "offsets": _by_task(member.task_offsets),
        "end offsets": _by_task(member.task_end_offsets),
        "classic": member.is_classic,
        **{
            f"{kind} {role}": plain(getattr(assignment, f"{role}_tasks"))
            for kind, assignment in (("has", member.assignment), ("target", member.target_assignment))
            for role in ("active", "standby", "warmup")
        },
    }
