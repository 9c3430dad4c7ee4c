"""Fixes of errors in the words of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command_lines import Command

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.main import FAILED, NO_CONNECTION


def test_a_fix_names_the_option_and_the_address_in_use(
    headrace: Command, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = broker.bootstrap_servers
    outcome = headrace("topics", "--describe", "--topic", "zebras", "--bootstrap-server", servers)
    assert f"fix    headrace topics --bootstrap-server {servers} --create --topic zebras" in outcome.err
    outcome = headrace("top", "zebras", "--bootstrap-server", servers)
    assert f"headrace groups --bootstrap-server {servers} --list" in outcome.err
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", servers)  # the next command has the variable as well
    assert "headrace groups --list" in headrace("top", "zebras").err
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert "--bootstrap-server (now 127.0.0.1:1, from HEADRACE_BOOTSTRAP_SERVERS)" in headrace("topics", "--list").err
    outcome = headrace("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert "set --bootstrap-server (now 127.0.0.1:1, from --bootstrap-server) to" in outcome.err


def test_a_fix_names_the_option_for_a_wrong_address_or_protocol(
    headrace: Command, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    outcome = headrace("topics", "--list", "--bootstrap-server", "localhost:abc")
    assert "set --bootstrap-server (now localhost:abc, from --bootstrap-server) to HOST:PORT" in outcome.err
    tls = tmp_path / "client.properties"
    tls.write_text("security.protocol=SSL\n")
    servers = broker.bootstrap_servers
    outcome = headrace("topics", "--list", "--bootstrap-server", servers, "--command-config", str(tls))
    assert outcome.code == NO_CONNECTION
    assert f"set security.protocol in --command-config FILE: the listener at {servers} may not speak TLS" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["topics", "--create", "--topic", "a b"], "bad-topic-name"),
        (["topics", "--create", "--topic", "t", "--replication-factor", "3"], "broker-refused"),
        (["acls", "--list"], "broker-refused"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_broker_refusals_have_a_fix(headrace: Command, broker: EmbeddedBroker, arguments: list[str], code: str) -> None:
    outcome = headrace(*arguments, "--bootstrap-server", broker.bootstrap_servers)
    assert outcome.code == FAILED
    assert outcome.err.startswith(f"error[{code}]: ")
    assert "\nfix    " in outcome.err
