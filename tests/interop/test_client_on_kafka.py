"""Our client against Apache Kafka itself, unchanged: records, offsets, members that share, a guardian that leaves."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.client.moving_tasks_script import move_tasks_around
from tests.client.streams_members import is_asked_to_shut_down, served_partitions, serves, share_changes, take_changes
from tests.harness.polling import wait_until
from tests.interop.kafka_broker import KafkaBroker

from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.group_offsets import commit_offsets, fetch_offsets
from headrace.client.guardian_link import GuardianLink, GuardianSettings
from headrace.client.membership.endpoints import Endpoint
from headrace.client.membership.events import (
    Fatal,
    Left,
    NotReady,
    SettingIgnored,
    TargetSeen,
)
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.client.producer import Producer
from headrace.client.streams_member import StreamsMember
from headrace.errors import BrokerError, Fenced
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.partitioner import partition_for_key

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PATIENCE_S = 40


@pytest.fixture
def client(kafka: KafkaBroker) -> Iterator[NetworkClient]:
    with NetworkClient(kafka.bootstrap_servers, client_id="headrace-interop") as connected:
        yield connected


@pytest.fixture
def topic(client: NetworkClient) -> str:
    """A topic of four partitions that no other test uses."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    Admin(client).create_topics({name: 4})
    client.leaders((name, partition) for partition in range(4))
    return name


def topology_of(topic: str, *changelogs: InternalTopic) -> Topology:
    return Topology(
        subtopologies=(
            Subtopology(subtopology_id="flights", source_topics=(topic,), state_changelog_topics=changelogs),
        )
    )


def test_every_api_that_the_client_uses_has_a_common_version(client: NetworkClient) -> None:
    for api_key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.METADATA):
        assert client.supported_range(api_key) == SUPPORTED[api_key]
    assert client.supported_range(ApiKey.STREAMS_GROUP_HEARTBEAT) == (0, 0), "4.3.1 has no version 1"


@pytest.mark.parametrize("codec", CODECS)
def test_arrow_records_come_back_as_they_went(client: NetworkClient, topic: str, codec: str) -> None:
    keys = pa.array([b"key-%d" % n if n % 7 else None for n in range(2_000)], pa.binary())
    values = pa.array([b"value-%d" % n if n % 11 else None for n in range(2_000)], pa.binary())
    producer = Producer(client, compression=codec, max_batch_bytes=10_000)
    producer.send(topic, None, keys, values, timestamps_ms=1_700_000_000_000)
    written = producer.flush()
    rows: list[tuple[bytes | None, bytes | None]] = []
    fetcher = Fetcher(client, max_bytes=30_000, max_partition_bytes=20_000)
    for batch in fetcher.fetch_ranges({key: (0, last + 1) for key, last in written.items()}):
        for row in batch.table.to_pylist():
            rows.append((row["key"], row["value"]))
            if row["key"] is not None:
                assert batch.partition == partition_for_key(row["key"], 4)
    assert sorted(rows, key=repr) == sorted(zip(keys.to_pylist(), values.to_pylist(), strict=True), key=repr)


def test_plain_records_keep_headers_and_tombstones(client: NetworkClient, topic: str) -> None:
    sent = [
        PlainRecord(value=b"1", key=b"k", timestamp_ms=5, headers=(("h", b"x"), ("n", None))),
        PlainRecord(value=None, key=b"k", timestamp_ms=6),
    ]
    where = partition_for_key(b"k", 4)
    assert produce(client, topic, sent) == {(topic, where): 1}
    received = [record for _, _, record in consume(client, {(topic, where): 0})]
    assert [(r.key, r.value, r.timestamp_ms, r.headers, r.offset) for r in received] == [
        (b"k", b"1", 5, (("h", b"x"), ("n", None)), 0),
        (b"k", None, 6, (), 1),
    ]


def test_offsets_outside_the_log_are_reported(client: NetworkClient, topic: str) -> None:
    produce(client, topic, [PlainRecord(value=b"v")] * 3, partition=1)
    admin = Admin(client)
    assert admin.delete_records({(topic, 1): 2}) == {(topic, 1): 2}
    assert admin.list_offsets({(topic, 1): "earliest"})[topic, 1].offset == 2
    with pytest.raises(BrokerError) as caught:
        list(Fetcher(client).fetch_ranges({(topic, 1): (0, 3)}))
    assert caught.value.code == "offset-out-of-range"


def test_offsets_of_a_group_without_members(client: NetworkClient, topic: str) -> None:
    admin, group = Admin(client), f"group-{topic}"
    admin.alter_offsets(group, {(topic, 0): 5})
    assert admin.committed_offsets(group) == {(topic, 0): 5}
    assert group in {listed.group_id for listed in admin.list_groups()}
    admin.delete_groups([group])
    assert admin.committed_offsets(group) == {}


def test_two_members_share_commit_and_leave(kafka: KafkaBroker, client: NetworkClient, topic: str) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    changelog = InternalTopic(name=f"{group}-changelog", configs=(("cleanup.policy", "compact"),))
    topology = topology_of(topic, changelog)
    with StreamsMember(group, topology, bootstrap_servers=servers, member_id="m-1") as first:
        take_changes(first, 4)
        assert len(client.known_topics([changelog.name]).topics[changelog.name].partitions) == 4
        with StreamsMember(group, topology, bootstrap_servers=servers, member_id="m-2") as second:
            take_changes(first, 2)
            take_changes(second, 2)
            owned = [*first.assignment.active["flights"], *second.assignment.active["flights"]]
            assert sorted(owned) == [0, 1, 2, 3]
            snapshot = second.assignment
            partition = snapshot.active["flights"][0]
            identity: dict[str, Any] = {"member_id": snapshot.member_id, "member_epoch": snapshot.member_epoch}
            commit_offsets(client, group, {(topic, partition): 11}, **identity)
            assert fetch_offsets(client, group, [(topic, partition)], **identity) == {(topic, partition): 11}
            with pytest.raises(Fenced):
                commit_offsets(client, group, {(topic, partition): 12}, member_id="ghost", member_epoch=1)
            described = Admin(client).describe_streams_groups([group])[group]
            assert [member.member_id for member in described.members] == ["m-1", "m-2"]
            assert described.topology is not None
            assert described.topology.subtopologies[0].source_topics == (topic,)
        take_changes(first, 4)
    assert Admin(client).describe_streams_groups([group])[group].state == "Empty"


def test_a_guardian_keeps_a_member_and_leaves(kafka: KafkaBroker, client: NetworkClient, topic: str) -> None:
    settings = GuardianSettings(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=f"app-{topic}",
        topology=topology_of(topic),
        member_id="m-1",
        process_id="p-1",
    )
    with GuardianLink.start(settings) as link:
        take_changes(link, 4)
        link.leave()
        seen: list[object] = []
        until = time.monotonic() + PATIENCE_S
        while Left(confirmed=True) not in seen and time.monotonic() < until:
            seen += link.events(0.2)
        assert Left(confirmed=True) in seen
    assert Admin(client).describe_streams_groups([settings.group_id])[settings.group_id].members == ()


def test_an_instance_comes_and_goes_and_every_record_is_processed_once(
    kafka: KafkaBroker, client: NetworkClient, topic: str
) -> None:
    Admin(client).create_topics({f"{topic}-8": 8})
    move_tasks_around(kafka.bootstrap_servers, f"app-{topic}", f"{topic}-8", rounds=1)


def test_an_instance_id_is_not_sent_where_it_would_be_refused(
    kafka: KafkaBroker, client: NetworkClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    with StreamsMember(group, topology_of(topic), bootstrap_servers=servers, group_instance_id="pod-1") as member:
        member.report_offsets({("flights", 0): 5})
        ignored = next(event for event in member.changes(PATIENCE_S) if isinstance(event, SettingIgnored))
        assert ignored.setting == "group.instance.id"
        take_changes(member, 4)
        (described,) = Admin(client).describe_streams_groups([group])[group].members
        assert described.instance_id is None
        member.leave(for_a_while=True)
        wait_until(lambda: not Admin(client).describe_streams_groups([group])[group].members)
    warnings = [record for record in caplog.records if "pod-1" in record.getMessage()]
    assert len(warnings) == 1


def test_a_restart_with_the_same_member_id_moves_no_task(kafka: KafkaBroker, client: NetworkClient, topic: str) -> None:
    """What an application with an instance id does on 4.3.1: same member id, same process id, and no word between."""
    settings = GuardianSettings(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=f"app-{topic}",
        topology=topology_of(topic),
        member_id="m-1",
        process_id="p-1",
        instance_id="pod-1",
        keeps_member_id=True,
    )

    def described() -> tuple[int, list[tuple[str, int]]]:
        found = Admin(client).describe_streams_groups([settings.group_id])[settings.group_id]
        return found.group_epoch, [(member.member_id, member.member_epoch) for member in found.members]

    with GuardianLink.start(settings) as link:
        take_changes(link, 4)
        before = described()
        link.leave(for_a_while=True)
        gone = Left(confirmed=False, will_return=True)
        wait_until(lambda: gone in link.events(0.2))
    assert described() == before, "nobody was told"
    with GuardianLink.start(settings) as link:
        take_changes(link, 4)
        assert described() == before, "the same member, the same epochs"


def test_a_joiner_sees_its_target_before_the_owner_gives_anything_back(kafka: KafkaBroker, topic: str) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    with StreamsMember(group, topology_of(topic), bootstrap_servers=servers) as owner:
        take_changes(owner, 4)
        with StreamsMember(group, topology_of(topic), bootstrap_servers=servers, early_look=True) as joiner:
            seen = wait_until(lambda: [event for event in joiner.changes(0.1) if isinstance(event, TargetSeen)])
            assert sum(map(len, seen[0].to_come.values())) == 2
            assert joiner.assignment.active == {}
            to_come = seen[0].to_come
            take_changes(owner, 2)
            take_changes(joiner, 2)
            assert joiner.assignment.active == to_come


def test_every_member_knows_the_endpoint_that_serves_a_key(kafka: KafkaBroker, topic: str) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    here, there = Endpoint("here", 8081), Endpoint("there", 8082)
    with StreamsMember(group, topology_of(topic), bootstrap_servers=servers, endpoint=str(here)) as first:
        take_changes(first, 4)
        with StreamsMember(group, topology_of(topic), bootstrap_servers=servers, endpoint=str(there)) as second:
            take_changes(first, 2)
            take_changes(second, 2)
            for member in (first, second):
                wait_until(partial(serves, member, topic, {here: 2, there: 2}))
            for number in range(20):
                key = b"key-%d" % number
                owner = first if partition_for_key(key, 4) in first.assignment.active["flights"] else second
                expected = here if owner is first else there
                assert first.endpoint_for(topic, key) == second.endpoint_for(topic, key) == expected
        take_changes(first, 4)
        wait_until(lambda: served_partitions(first, topic) == {here: 4})


def test_an_endpoint_and_missing_topics_together_end_no_member(
    kafka: KafkaBroker, client: NetworkClient, topic: str
) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR, at which its own Java client ends."""
    later, here, there = f"{topic}-later", Endpoint("here", 8081), Endpoint("there", 8082)
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    with (
        StreamsMember(group, topology_of(later), bootstrap_servers=servers, endpoint=str(here)) as first,
        StreamsMember(group, topology_of(later), bootstrap_servers=servers, endpoint=str(there)) as second,
    ):
        for member in (first, second):
            not_ready = next(event for event in member.changes(PATIENCE_S) if isinstance(event, NotReady))
            assert not_ready.status[0][0] == 1
        Admin(client).create_topics({later: 2})
        share_changes((first, second), 1)
        for member in (first, second):  # also the one whose tasks and endpoint did not change last
            wait_until(partial(serves, member, later, {here: 1, there: 1}))


def test_one_member_can_ask_all_to_stop(kafka: KafkaBroker, topic: str) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    with (
        StreamsMember(group, topology_of(topic), bootstrap_servers=servers) as first,
        StreamsMember(group, topology_of(topic), bootstrap_servers=servers) as second,
    ):
        share_changes((first, second), 2)
        first.request_shutdown()
        for member in (first, second):
            wait_until(partial(is_asked_to_shut_down, member))


def test_a_different_topology_and_missing_topics_are_reported(kafka: KafkaBroker, topic: str) -> None:
    group, servers = f"app-{topic}", kafka.bootstrap_servers
    with StreamsMember(group, topology_of(topic), bootstrap_servers=servers) as first:
        take_changes(first, 4)
        with StreamsMember(group, topology_of("other"), bootstrap_servers=servers) as second:
            fatal = next(event for event in second.changes(PATIENCE_S) if isinstance(event, Fatal))
            assert isinstance(fatal.error, BrokerError)
            assert fatal.error.code == "topology-differs"
    with StreamsMember(f"{group}-2", topology_of(f"{topic}-missing"), bootstrap_servers=servers) as lonely:
        seen: list[object] = []
        until = time.monotonic() + PATIENCE_S
        while not any(isinstance(event, NotReady) for event in seen) and time.monotonic() < until:
            seen += list(lonely.changes(0.2))
        (not_ready,) = [event for event in seen if isinstance(event, NotReady)]
        assert not_ready.status[0][0] == 1
