"""Records without Arrow, out and in again."""

from __future__ import annotations

import pytest
from tests.client.produced_records import CODECS

from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, consume, produce
from headrace.protocol.partitioner import partition_for_key


@pytest.mark.parametrize("codec", CODECS)
def test_plain_records_come_back_as_they_went(client: NetworkClient, codec: str) -> None:
    sent = [
        PlainRecord(value=b"1", key=b"k", timestamp_ms=5, headers=(("h", b"x"), ("n", None))),
        PlainRecord(value=None, key=b"k", timestamp_ms=6),
    ]
    where = partition_for_key(b"k", 4)
    assert produce(client, "flights", sent, compression=codec) == {("flights", where): 1}
    received = [(topic, p, record) for topic, p, record in consume(client, {("flights", n): 0 for n in range(4)})]
    assert [(topic, p) for topic, p, _ in received] == [("flights", where)] * 2
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for _, _, r in received] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in sent
    ]
