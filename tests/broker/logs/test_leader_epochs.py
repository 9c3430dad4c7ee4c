"""Leader epochs across starts of the broker (KIP-101, KIP-320): clients see who is behind, and where a log was cut."""

from __future__ import annotations

from typing import Any

import pytest
from tests.harness.brokers import Connect

from headrace.broker.embedded import EmbeddedBroker
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms


def end_of(client: Any, epoch: int, current: int = -1) -> tuple[ErrorCode, int, int]:
    o = m.offset_for_leader_epoch_request
    asked = o.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = o.OffsetForLeaderEpochRequest(topics=(o.OffsetForLeaderTopic(topic="t", partitions=(asked,)),))
    told = client.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request).topics[0].partitions[0]
    return told.error_code, told.leader_epoch, told.end_offset


def leader_epoch(client: Any) -> int:
    topic = m.metadata_request.MetadataRequestTopic(topic_id=None, name="t")
    request = m.metadata_request.MetadataRequest(
        topics=(topic,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return int(client.call(ApiKey.METADATA, request).topics[0].partitions[0].leader_epoch)


def fetch(client: Any, offset: int, **more: Any) -> Any:
    f = m.fetch_request
    part = f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, **more)
    topics = (f.FetchTopic(topic="t", topic_id=None, partitions=(part,)),)
    request = f.FetchRequest(topics=topics, max_wait=from_ms(0), min_bytes=0)
    return client.call(ApiKey.FETCH, request, 12).responses[0].partitions[0]


def latest(client: Any, current: int) -> tuple[ErrorCode, int, int]:
    o = m.list_offsets_request
    asked = o.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=current)
    topics = (o.ListOffsetsTopic(name="t", partitions=(asked,)),)
    request = o.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout=from_ms(1000))
    told = client.call(ApiKey.LIST_OFFSETS, request).topics[0].partitions[0]
    return told.error_code, told.offset, told.leader_epoch


@pytest.fixture
def restarted(broker: EmbeddedBroker) -> EmbeddedBroker:
    """Four starts: records in the epochs 0 (three) and 2 (two), none in 1 and 3."""
    broker.create_topics({"t": 1})
    broker.produce("t", [b"0", b"1", b"2"])
    broker.restart()
    broker.restart()
    broker.produce("t", [b"3", b"4"])
    broker.restart()
    return broker


def test_the_epoch_rises_with_each_start_and_is_the_same_everywhere(
    restarted: EmbeddedBroker, connect: Connect
) -> None:
    client = connect(restarted)
    assert leader_epoch(client) == 3
    assert latest(client, -1) == (ErrorCode.none, 5, 3)


def test_ends_of_epochs(restarted: EmbeddedBroker, connect: Connect) -> None:
    client = connect(restarted)
    none = ErrorCode.none
    ends = {epoch: end_of(client, epoch) for epoch in range(-1, 6)}
    assert ends[0] == (none, 0, 3)
    assert ends[1] == (none, 0, 3), "nothing was written in 1"
    assert ends[2] == (none, 2, 5)
    assert ends[3] == (none, 3, 5), "nothing yet"
    assert ends[-1] == ends[4] == ends[5] == (none, -1, -1)
    restarted.produce("t", [b"5"])
    assert (end_of(client, 2), end_of(client, 3)) == ((none, 2, 5), (none, 3, 6))


@pytest.mark.parametrize(
    ("named", "code"),
    [
        (-1, ErrorCode.none),
        (0, ErrorCode.fenced_leader_epoch),
        (2, ErrorCode.fenced_leader_epoch),
        (3, ErrorCode.none),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_wrong_leader_epoch_is_refused(
    restarted: EmbeddedBroker, connect: Connect, named: int, code: ErrorCode
) -> None:
    client = connect(restarted)
    assert end_of(client, 0, named)[0] is code
    assert fetch(client, 0, current_leader_epoch=named).error_code is code
    assert latest(client, named)[0] is code


def test_a_reader_of_records_that_are_gone_is_told_where_its_log_parts(
    restarted: EmbeddedBroker, connect: Connect
) -> None:
    client = connect(restarted)
    assert fetch(client, 5, last_fetched_epoch=2).diverging_epoch.epoch == -1
    lost = fetch(client, 4, last_fetched_epoch=0).diverging_epoch
    assert (lost.epoch, lost.end_offset) == (0, 3)
    assert fetch(client, 4, last_fetched_epoch=9).error_code is ErrorCode.offset_out_of_range


def test_epochs_move_with_deleted_records(restarted: EmbeddedBroker, connect: Connect) -> None:
    d = m.delete_records_request
    client = connect(restarted)
    checkpoint = restarted.data_dir / "t-0" / "leader-epoch-checkpoint"
    for offset, expected in ((1, "0\n2\n0 1\n2 3\n"), (4, "0\n1\n2 4\n"), (5, "0\n1\n2 5\n")):
        topic = d.DeleteRecordsTopic(name="t", partitions=(d.DeleteRecordsPartition(partition_index=0, offset=offset),))
        client.call(ApiKey.DELETE_RECORDS, d.DeleteRecordsRequest(topics=(topic,), timeout=from_ms(1000)))
        assert checkpoint.read_text() == expected
    assert end_of(client, 0) == (ErrorCode.none, 0, 5), "older than all that is known: it ended where that begins"
