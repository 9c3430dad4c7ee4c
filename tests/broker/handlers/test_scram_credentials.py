"""SCRAM credentials across a kill of the broker."""

from __future__ import annotations

import json
import stat

import pytest
from tests.broker.network.secured_clients import BOB, USERS

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.network_client import NetworkClient

pytestmark = pytest.mark.foreign


def test_scram_credentials_survive_a_kill_and_nobody_else_reads_them() -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    with EmbeddedBroker(config=config) as broker:
        broker.add_scram_users(USERS)
        file = broker.data_dir / "headrace-scram.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "pw-bob" not in file.read_text()
        assert set(json.loads(file.read_text())["users"]["bob"]["SCRAM-SHA-512"]) == {
            "iterations", "salt", "server_key", "stored_key",
        }  # fmt: skip
        broker.kill()
        broker.restart()
        with NetworkClient(broker.bootstrap_servers, security={"security.protocol": "SASL_PLAINTEXT", **BOB}) as client:
            assert client.metadata().brokers
