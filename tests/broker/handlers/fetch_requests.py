"""Produce and Fetch requests made by hand, and what is looked at in their answers."""

from __future__ import annotations

from typing import Any

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, encode_batch

p, f = m.produce_request, m.fetch_request


def topic_id_of(client: Any, name: str) -> Any:
    topic = m.metadata_request.MetadataRequestTopic(topic_id=None, name=name)
    request = m.metadata_request.MetadataRequest(
        topics=(topic,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    return client.call(ApiKey.METADATA, request).topics[0].topic_id


def batch(*values: bytes, **fields: Any) -> bytes:
    return encode_batch([PlainRecord(value=value, timestamp_ms=1000) for value in values], **fields)


def produce(topic: str, topic_id: Any, records: bytes | None, *, partition: int = 0, acks: int = -1) -> Any:
    part = p.PartitionProduceData(index=partition, records=records)
    data = p.TopicProduceData(name=topic, topic_id=topic_id, partition_data=(part,))
    return p.ProduceRequest(acks=acks, timeout=from_ms(1000), topic_data=(data,))


def only(answer: Any) -> Any:
    """The one partition of a Produce or Fetch answer."""
    (topic,) = answer.responses
    (part,) = topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
    return part
