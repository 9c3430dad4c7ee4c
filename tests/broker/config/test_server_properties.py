"""A file made for Apache Kafka starts our broker; what does not count is told, what nobody knows as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.broker.config.broker_configuration import BROKER_SETTINGS, BrokerConfiguration
from headrace.broker.config.kafka_setting_names import KAFKA_SETTING_NAMES, SETTINGS_WITHOUT_EFFECT
from headrace.broker.config.server_properties import as_properties, read_server_properties
from headrace.client.client_settings import parse_properties
from headrace.errors import ConfigError

# What the server.properties that comes with Apache Kafka 4.3.1 sets.
KAFKAS_OWN = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/headrace
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_kafkas_own_file_is_understood() -> None:
    found = read_server_properties(parse_properties(KAFKAS_OWN))
    configuration = BrokerConfiguration.from_settings(None, settings=found.settings)
    assert configuration.data_dir == Path("/var/lib/headrace")
    assert configuration.integer("log.segment.bytes") == 1 << 30
    assert found.settings["listeners"] == "PLAINTEXT://:9092"
    told = "\n".join(found.notices)
    assert "without CONTROLLER://:9093" in told
    assert "num.io.threads, num.network.threads" in told
    assert "no setting of a broker" not in told
    assert len(found.notices) == 3


def test_a_name_that_nobody_knows_is_told_with_the_near_one() -> None:
    found = read_server_properties({"num.partition": "3", "zookeeper.connect": "x", "log.dirs": "/data"})
    assert "num.partition" not in found.settings
    assert found.notices == (
        "`num.partition` is no setting of a broker and is left out; did you mean `num.partitions`?",
        "`zookeeper.connect` is no setting of a broker and is left out.",
    )


def test_a_wrong_value_of_what_counts_is_an_error() -> None:
    found = read_server_properties({"num.partitions": "many", "log.dirs": "/data"})
    with pytest.raises(ConfigError, match=r"num\.partitions"):
        BrokerConfiguration.from_settings(None, settings=found.settings)


def test_one_data_directory() -> None:
    assert read_server_properties({"log.dir": "/data"}).settings == {"log.dirs": "/data"}
    with pytest.raises(ConfigError, match="several directories"):
        read_server_properties({"log.dirs": "/a,/b"})


def test_every_setting_of_kafka_is_known_told_or_reasoned() -> None:
    """No name of Kafka's is ever called unknown."""
    assert len(KAFKA_SETTING_NAMES) == 360
    given = dict.fromkeys(KAFKA_SETTING_NAMES - {"log.dirs", "log.dir"}, "1")
    found = read_server_properties(given)
    assert not [notice for notice in found.notices if "no setting of a broker" in notice]
    told = re.findall(r"[a-z][a-z0-9.]+", re.sub(r"\([^)]*\)", "", " ".join(found.notices)))  # without the reasons
    for name in given:  # each counts, or is told once: none is passed over in silence
        assert (name in found.settings) + told.count(name) == 1, name


def test_the_printed_configuration_can_be_read_again_and_hides_secrets(tmp_path: Path) -> None:
    given = {"num.partitions": "3", "log.retention.ms": "5000", "ssl.keystore.password": "open sesame"}
    configuration = BrokerConfiguration.from_settings(tmp_path, settings=given)
    text = as_properties(configuration)
    assert "sesame" not in text
    read = parse_properties(text)
    assert {name: read[name] for name in given} == {**given, "ssl.keystore.password": "[hidden]"}
    assert set(read) == set(given)
    for name in BROKER_SETTINGS.keys() - SETTINGS_WITHOUT_EFFECT.keys():
        if configuration.get(name) is not None:
            assert f"{name}=" in text
