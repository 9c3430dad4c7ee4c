"""Access rules: addresses, names, logins and requests of other sites, at a real server."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator

import pytest
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.harness.brokers import broker_fixture
from tests.harness.http import http_request

from headrace.broker.embedded import EmbeddedBroker
from headrace.broker.network.listener import is_loopback
from headrace.cli.ui.access import WRONG_LOGIN_SECONDS, AccessRules, Login, host_name
from headrace.cli.ui.server import LONGEST_HEADER_BYTES
from headrace.errors import ConfigError

PASSWORD = "correct-horse-battery"
EVERY_PATH = ("/", "/group?id=x", "/app.js", "/app.css", "/api/overview", "/api/groups", "/api/group?id=x",
    "/api/topics", "/api/topic?name=x", "/api/frames", "/missing")  # fmt: skip

broker = broker_fixture({"flights": 4}, scope="module")


@pytest.fixture(scope="module")
def page(broker: EmbeddedBroker) -> Iterator[PageUnderTest]:
    with served_page(broker.bootstrap_servers, allowed_hosts=("Kafka-UI.example.com",)) as served:
        yield served


@pytest.fixture(scope="module")
def locked(broker: EmbeddedBroker) -> Iterator[PageUnderTest]:
    with served_page(broker.bootstrap_servers, login=Login("ops", PASSWORD)) as served:
        yield served


def basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "kafka.example.com"])
def test_an_address_that_others_reach_needs_a_login(host: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AccessRules.for_address(host)
    assert "HEADRACE_UI_LOGIN" in refused.value.fix
    assert AccessRules.for_address(host, login=Login("ops", PASSWORD)).allows_host(
        f"{host}:9310" if ":" not in host else "[::]:1"
    )


def test_loopback_addresses_need_none() -> None:
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert is_loopback(host)
        assert AccessRules.for_address(host).login is None
    assert not is_loopback("localhost.example.com")


@pytest.mark.parametrize("text", ["", "ops", "ops:", "ops:short", ":" + PASSWORD, PASSWORD])
def test_a_weak_login_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Login.parse(text, "HEADRACE_UI_LOGIN")
    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in repr(Login("ops", PASSWORD))


def test_names_of_the_header_host() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("LOCALHOST.:1") == "localhost"
    for bad in ("", ":80", "[::1", "a:b", "[::1]x", "a:1:2"):
        assert host_name(bad) is None


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "a:b"])
def test_a_foreign_name_is_refused(page: PageUnderTest, host: str) -> None:
    # DNS rebinding: the browser believes that the page belongs to this name.
    for path in EVERY_PATH:
        assert page.get(path, Host=host).status == 421, path


@pytest.mark.parametrize("host", ["localhost:9310", "127.0.0.1", "[::1]:9310", "kafka-ui.example.com"])
def test_own_names_are_served(page: PageUnderTest, host: str) -> None:
    assert page.get("/", Host=host).status == 200


def test_a_request_with_two_names_is_refused(page: PageUnderTest) -> None:
    with socket.create_connection(("127.0.0.1", page.port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert connection.recv(100).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_data_is_refused_to_other_sites(page: PageUnderTest, site: str) -> None:
    for path in (path for path in EVERY_PATH if path.startswith("/api/")):
        assert page.get(path, Sec_Fetch_Site=site).status == 403, path
        assert page.get(path, Origin="http://127.0.0.1:1").status == 403, path
    # A link on another site to a screen is fine: it has no data.
    assert page.get("/groups", Sec_Fetch_Site=site).status == 200
    assert page.get("/api/overview", Sec_Fetch_Site="same-origin", Origin=page.url).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_the_page_is_read_only(page: PageUnderTest, method: str) -> None:
    for path in EVERY_PATH:
        answer = http_request(page.port, path, method=method, body=b"x" if method == "POST" else None)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD"), path


def test_every_path_needs_the_login(locked: PageUnderTest) -> None:
    for path in EVERY_PATH:
        answer = locked.get(path)
        assert answer.status == 401, path
        assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert locked.get("/api/overview", Authorization=basic(f"ops:{PASSWORD}")).status == 200
    assert locked.get("/", Authorization=basic(f"ops:{PASSWORD}")).status == 200


@pytest.mark.parametrize(
    "header",
    [basic("ops:wrong-password"), basic(f"root:{PASSWORD}"), "Basic ops", "Basic é", f"Bearer {PASSWORD}", "Basic "],
)
def test_a_wrong_login_is_refused_and_takes_time(locked: PageUnderTest, header: str) -> None:
    begun = time.monotonic()
    assert locked.get("/api/overview", Authorization=header.encode("latin-1").decode("latin-1")).status == 401
    assert time.monotonic() - begun >= WRONG_LOGIN_SECONDS


def test_every_answer_has_the_security_headers(page: PageUnderTest, locked: PageUnderTest) -> None:
    answers = [page.get(path) for path in EVERY_PATH if path != "/api/frames"]
    answers += [page.get("/", Host="evil.example"), locked.get("/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
    assert page.get("/api/overview").headers["cache-control"] == "no-store"


def test_nothing_is_loaded_from_elsewhere(page: PageUnderTest) -> None:
    shell = page.get("/").body.decode()
    assert "<script>" not in shell
    assert "style=" not in shell
    for name in ("/", "/app.css", "/app.js", "/dom.js", "/screens.js", "/tables.js", "/charts.js", "/words.js"):
        text = page.get(name).body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert "innerHTML" not in text, name


def test_long_requests_are_refused(page: PageUnderTest) -> None:
    assert page.get("/api/group", {"id": "x" * (LONGEST_HEADER_BYTES - 1000)}).status in (200, 404)
    with socket.create_connection(("127.0.0.1", page.port), timeout=10) as connection:
        connection.sendall(b"GET /?q=" + b"x" * (4 * LONGEST_HEADER_BYTES))
        assert connection.recv(100).split()[1] == b"400"
