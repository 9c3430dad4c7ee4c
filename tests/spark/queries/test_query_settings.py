"""Settings of the server of queries: off unless asked for, and never open to other machines without a token."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.queries.state_query_server import query_server_settings
from headrace.spark.settings import checked_config


def settings_of(config, master="local[2]"):
    return query_server_settings(checked_config(config), master)


def test_the_server_is_off_by_default():
    assert settings_of({}) is None


def test_loopback_needs_no_token(tmp_path):
    found = settings_of({"application.server": "127.0.0.1:0", "headrace.state.query.timeout.ms": 1_500})
    assert found is not None
    assert (found.host, found.bind_host, found.port, found.token) == ("127.0.0.1", "127.0.0.1", 0, None)
    assert found.limits.timeout_s == 1.5
    assert settings_of({"application.server": "[::1]:8081"}).bind_host == "::1"


def test_a_token_opens_other_addresses(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    config = {"application.server": "example.org:8081", "headrace.state.query.token.file": str(tmp_path / "token")}
    found = settings_of({**config, "headrace.state.query.host": "0.0.0.0"})
    assert found is not None
    assert found.bind_host == "0.0.0.0"
    assert found.token == "0123456789abcdef"
    assert "0123" not in repr(found)


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"application.server": "8081"}, "application.server"),
        ({"application.server": ":8081"}, "application.server"),
        ({"application.server": "127.0.0.1:99999"}, "application.server"),
        ({"application.server": "127.0.0.1:-1"}, "application.server"),
        ({"application.server": "0.0.0.0:0"}, "token.file"),
        ({"application.server": "127.0.0.1:0", "headrace.state.query.host": "0.0.0.0"}, "token.file"),
        ({"application.server": "example.org:80", "headrace.state.query.host": "127.0.0.1"}, "token.file"),
        ({"application.server": "127.0.0.1:0", "headrace.state.query.token.file": "/absent"}, "/absent"),
        ({"application.server": "127.0.0.1:0", "headrace.state.query.max.rows": 0}, "max.rows"),
    ],
)
def test_settings_that_would_open_the_state_are_refused(config, part):
    with pytest.raises(ConfigError, match=part):
        settings_of(config)


@pytest.mark.parametrize("text", ["", "short", "two words of a token", "0123456789abcdé\n"])
def test_tokens_that_are_none_are_refused(tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="token"):
        settings_of({"application.server": "127.0.0.1:0", "headrace.state.query.token.file": str(tmp_path / "token")})


def test_a_cluster_is_refused():
    with pytest.raises(ConfigError, match="cluster"):
        settings_of({"application.server": "127.0.0.1:0"}, "spark://host:7077")
