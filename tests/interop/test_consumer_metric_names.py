"""Every metric of our consumer is called as in Kafka's Java client: the names stand in its class files."""

from __future__ import annotations

import zipfile

import pytest
from tests.interop.kafka_jars import TOOLS_VERSION, kafka_jars

from headrace.client.consumer.consumer_metrics import ConsumerMetrics
from headrace.client.consumer.consumer_types import TopicPartition

pytestmark = pytest.mark.interop


def test_names_are_kafkas() -> None:
    with zipfile.ZipFile(kafka_jars(TOOLS_VERSION) / f"kafka-clients-{TOOLS_VERSION}.jar") as packed:
        classes = [name for name in packed.namelist() if "/consumer/internals/" in name and name.endswith(".class")]
        constants = b"".join(packed.read(name) for name in classes)
    for family in ConsumerMetrics("c").families({TopicPartition("t", 0): 1}, 1):
        group = family.mbean.partition("type=")[2]
        assert family.attribute.encode() in constants, family.attribute
        assert group.encode() in constants or group.removeprefix("consumer").encode() in constants, group
