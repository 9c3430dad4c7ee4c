"""Users of the cluster log in to the page, with their own rights; others are refused."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.command_lines import headrace_process
from tests.harness.http import Answer, http_request
from tests.harness.polling import wait_until

from headrace import Admin, EmbeddedBroker
from headrace.cli.exporter.cluster_snapshot import Selection
from headrace.cli.exporter.name_filter import NameFilter
from headrace.cli.ui import cluster_login
from headrace.cli.ui.access import AccessRules
from headrace.cli.ui.cluster_login import ClusterLogin, UserPage, security_of_user
from headrace.cli.ui.cluster_watch import ClusterWatch
from headrace.cli.ui.server import PageServer
from headrace.cli.ui.web_application import WebPage
from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError

SECURITY = ClientSecurity.from_settings(
    {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="service" password="pw-service";',
    }
)


@pytest.fixture(scope="module")
def secured() -> Iterator[EmbeddedBroker]:
    """Two topics, two groups; `admin` may see everything, `dave` one topic and no group, `empty` nothing."""
    config = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    with EmbeddedBroker({"flights": 2, "salaries": 1}, config=config) as broker:
        broker.add_scram_users(f"SCRAM-SHA-512=[name={name},password=pw-{name}]" for name in ("admin", "dave"))
        at = ("--bootstrap-server", broker.bootstrap_servers, "--add", "--allow-principal", "User:dave")
        for rule in (("--topic", "flights"), ("--cluster",)):
            added = headrace_process("acls", *at, "--operation", "Describe", *rule)
            assert added.code == 0, added.err
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_offsets("payroll", {("salaries", 0): 0})
        yield broker


@pytest.fixture
def port(secured: EmbeddedBroker) -> Iterator[int]:
    servers = f"127.0.0.1:{secured.ports['SASL_PLAINTEXT']}"
    rules = AccessRules.for_address("127.0.0.1", cluster_login=True)

    def open_as(user: str, password: str) -> Admin:
        return Admin(servers, security=security_of_user(SECURITY, user, password), api_timeout_ms=5_000)

    def open_page(open_admin: Any) -> UserPage:
        watch = ClusterWatch(
            open_admin, Selection(groups=NameFilter(), topics=NameFilter(exclude="__.*")), interval_seconds=1
        )
        return UserPage(WebPage(watch, rules, open_admin), watch)

    with PageServer(ClusterLogin(rules, open_as, open_page), host="127.0.0.1", port=0) as server:
        yield server.port


def get(port: int, path: str, login: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if login:
        named["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    return http_request(port, path, headers=named)


def collected(port: int, path: str, login: str) -> dict[str, Any]:
    def document() -> dict[str, Any] | None:
        answer = get(port, path, login)
        assert answer.status == 200, answer
        return answer.body if answer.body["collected_at_ms"] is not None else None

    return wait_until(document, "the first collection", interval_s=0.1)


def test_each_user_sees_what_the_cluster_lets_them_see(port: int) -> None:
    everything = collected(port, "/api/topics", "admin:pw-admin")
    assert {row["name"] for row in everything["rows"]} == {"flights", "salaries"}
    assert [row["group_id"] for row in collected(port, "/api/groups", "admin:pw-admin")["rows"]] == ["payroll"]
    # The same addresses, after another user has filled the documents of the server.
    own = collected(port, "/api/topics", "dave:pw-dave")
    assert {row["name"] for row in own["rows"]} == {"flights"}
    assert collected(port, "/api/groups", "dave:pw-dave")["rows"] == []
    assert "salaries" not in json.dumps(own)
    assert get(port, "/api/topic?name=salaries", "dave:pw-dave").status == 404
    assert get(port, "/api/records?topic=salaries", "dave:pw-dave").status == 404


def test_there_is_no_way_in_without_a_login_of_the_cluster(port: int, secured: EmbeddedBroker) -> None:
    assert get(port, "/api/topics", "admin:pw-admin").status == 200
    for login in ("", "admin:pw-dave", "admin:", ":pw-admin", "admin", "nobody:pw-admin", "admin\0:pw-admin", "é:\xad"):
        for path in ("/", "/app.js", "/api/topics", "/api/frames"):
            answer = get(port, path, login)
            assert (answer.status, "www-authenticate" in answer.headers) == (401, True), (login, path)
            if login not in ("", "admin"):
                break  # each wrong one costs half a second
    for header in ("Basic !", "Bearer pw-admin", "Basic " + base64.b64encode(b"\xff:\xff").decode()):
        assert get(port, "/api/topics", Authorization=header).status == 401


def test_a_wrong_login_takes_its_time(port: int) -> None:
    begun = time.monotonic()
    assert get(port, "/", "admin:wrong").status == 401
    assert time.monotonic() - begun >= 0.5


def test_the_rules_of_every_page_come_first(port: int) -> None:
    login = "admin:pw-admin"
    assert get(port, "/", login, Host="evil.example").status == 421
    assert get(port, "/api/topics", login, Sec_Fetch_Site="cross-site").status == 403
    assert http_request(port, "/api/topics", method="POST").status == 405
    answer = get(port, "/", login)
    assert (answer.status, answer.headers["x-frame-options"]) == (200, "DENY")


def test_a_session_ends_with_its_time(port: int, secured: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    secured.add_scram_users(["SCRAM-SHA-512=[name=eve,password=old]"])
    assert get(port, "/", "eve:old").status == 200
    secured.add_scram_users(["SCRAM-SHA-512=[name=eve,password=new]"])
    assert get(port, "/", "eve:old").status == 200
    monkeypatch.setattr(cluster_login, "SESSION_SECONDS", 0.0)
    assert get(port, "/", "eve:old").status == 401
    assert get(port, "/", "eve:new").status == 200


def test_the_longest_idle_user_makes_room(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_login, "MOST_USERS", 1)
    for login in ("admin:pw-admin", "dave:pw-dave", "admin:pw-admin"):
        assert get(port, "/", login).status == 200


@pytest.mark.parametrize("settings", [{}, {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}])
def test_a_connection_without_passwords_is_refused(settings: dict[str, str]) -> None:
    given = ClientSecurity(protocol=settings.get("security.protocol", "PLAINTEXT"), values=settings)
    with pytest.raises(ConfigError, match="--cluster-login"):
        security_of_user(given, "u", "p")
