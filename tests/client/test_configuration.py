"""Settings: which source wins, what is refused, what is passed over; Java's properties format."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.client_settings import parse_properties
from headrace.client.configuration import SETTINGS, ClientConfiguration
from headrace.client.membership.streams_protocol import parse_group_protocol
from headrace.client.membership.topology import Topology
from headrace.client.streams_member import StreamsMember
from headrace.errors import ConfigError
from headrace.spark.settings import checked_config


def test_defaults_need_nothing() -> None:
    settings = ClientConfiguration(environment={})
    assert settings.bootstrap_servers == "localhost:9092"
    assert settings["default.api.timeout.ms"] == 60_000
    assert settings.source("bootstrap.servers") == "default"
    assert set(settings) == set(SETTINGS)


def test_the_higher_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nclient.id=file\nclient.rack=file\nfetch.max.bytes=1000\n")
    environment = {"HEADRACE_CONFIG": str(file), "HEADRACE_CLIENT_ID": "env", "HEADRACE_CLIENT_RACK": "env"}
    environment["HEADRACE_BOOTSTRAP_SERVERS"] = "env:1,env:2"
    settings = ClientConfiguration({"client.rack": "map"}, environment=environment, client_rack="kw")
    assert (settings["client.rack"], settings.source("client.rack")) == ("kw", "argument")
    assert (settings["client.id"], settings.source("client.id")) == ("env", "environment")
    assert (settings["fetch.max.bytes"], settings.source("fetch.max.bytes")) == (1000, "file")
    assert settings.bootstrap_servers == "env:1,env:2"


def test_a_keyword_that_is_none_is_not_given() -> None:
    assert ClientConfiguration(environment={}, client_id=None)["client.id"] == "headrace"


def test_a_path_instead_of_a_mapping_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.properties"
    file.write_text("acks = 1\n")
    assert ClientConfiguration(file, environment={})["acks"] == "1"


def test_our_own_settings_have_no_doubled_name_in_the_environment() -> None:
    settings = ClientConfiguration(environment={"HEADRACE_HEARTBEAT_MAX_INTERVAL_MS": "250"})
    assert settings["headrace.heartbeat.max.interval.ms"] == 250


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.server,") as caught:
        ClientConfiguration({"bootstrap.server": "x"}, environment={})
    assert caught.value.code == "unknown-setting"
    assert "bootstrap.servers" in caught.value.fix


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fetch.max.bytes", "many"),
        ("fetch.max.bytes", 0),
        ("enable.idempotence", "maybe"),
        ("isolation.level", "serializable"),
        ("bootstrap.servers", " , "),
        ("bootstrap.servers", 9092),
    ],
)
def test_a_value_that_cannot_be_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        ClientConfiguration({key: value}, environment={})
    assert caught.value.code == "bad-value"


def test_explain_shows_every_value_with_its_source() -> None:
    shown = {key: (value, source) for key, value, source in ClientConfiguration(environment={}, acks="1").explain()}
    assert shown["acks"] == ("1", "argument")
    assert shown["enable.idempotence"] == ("true", "default")


def test_a_client_is_made_of_the_settings(broker: EmbeddedBroker) -> None:
    settings = ClientConfiguration(environment={}, bootstrap_servers=broker.bootstrap_servers, client_id="mine")
    with settings.network_client() as client:
        assert client.metadata(["flights"]).topics
        assert client.client_id == "mine"


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        ClientConfiguration(tmp_path / "nowhere", environment={})


def test_properties_as_java_reads_them() -> None:
    text = "# comment\n! another\n\na=1\n b : 2 \nc 3\nd=x\\\n   y\ne=tab\\there\\u0041\nf\ng=a=b\nh\\:i=j\na=9"
    assert parse_properties(text) == {
        "a": "9",
        "b": "2 ",
        "c": "3",
        "d": "xy",
        "e": "tab\thereA",
        "f": "",
        "g": "a=b",
        "h:i": "j",
    }


@pytest.mark.parametrize("given", ["auto", "streams", "STREAMS", " Classic "])
def test_a_streams_member_accepts_the_protocols_that_run_streams(given: str) -> None:
    settings = ClientConfiguration({"group.protocol": given}, environment={})
    assert settings.group_protocol is not None
    chosen = parse_group_protocol(settings.group_protocol, member="a StreamsMember")
    assert chosen == checked_config({"group.protocol": given})["group.protocol"] == given.strip().lower()


@pytest.mark.parametrize("given", ["consumer", "stream", ""])
def test_a_streams_member_refuses_other_protocols(given: str) -> None:
    if given:
        with pytest.raises(ConfigError, match="expected auto, streams, classic") as caught:
            StreamsMember("app", Topology(), config={"group.protocol": given}, bootstrap_servers="127.0.0.1:1")
        assert (caught.value.code, caught.value.facts["key"]) == ("bad-value", "group.protocol")
    with pytest.raises(ConfigError, match="expected auto, streams, classic"):
        checked_config({"group.protocol": given})


def test_an_application_chooses_its_protocol_by_the_cluster() -> None:
    assert checked_config({})["group.protocol"] == "auto"
