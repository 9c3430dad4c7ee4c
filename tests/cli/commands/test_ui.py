"""`headrace ui` as a process: loopback by default, refused without a login elsewhere, HTTPS, and its end."""

from __future__ import annotations

import base64
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command_lines import Command
from tests.harness.certificates import Certificates
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker

LOGIN = "ops:correct-horse-battery"


@contextmanager
def running_page(
    broker: EmbeddedBroker, *options: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "headrace.cli.main", "ui", "--port", "0", "--interval", "1"]
    process = subprocess.Popen(
        [*command, "--bootstrap-server", broker.bootstrap_servers, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found is not None, (line, process.stderr.read() if process.stderr and not line else "")
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def fetch(url: str, *, login: str = "", context: ssl.SSLContext | None = None) -> bytes:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        content = response.read()
        assert isinstance(content, bytes)
        return content


def test_the_page_is_on_loopback_and_ends_at_sigterm_with_open_streams(broker: EmbeddedBroker) -> None:
    with running_page(broker) as (process, url):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert b"<title>Headrace</title>" in fetch(url)
        wait_until(lambda: b'"name":"flights"' in fetch(f"{url}api/topics"), "it collects")
        with urllib.request.urlopen(f"{url}api/frames", timeout=10) as stream:
            assert stream.readline() == b"retry: 2000\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_https_with_a_login(broker: EmbeddedBroker, certificates: Certificates, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text(f"{LOGIN}\n")
    options = ["--tls-certificate", str(certificates.server)]
    context = ssl.create_default_context(cafile=str(certificates.authority))
    with running_page(broker, "--host", "0.0.0.0", "--login-file", str(login), *options) as (_, url):
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(url, context=context)
        assert b"Headrace" in fetch(url, login=LOGIN, context=context)


def test_users_log_in_at_the_cluster(tmp_path: Path) -> None:
    config = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    # The file has a connection; no user of the page logs in as its user.
    (tmp_path / "users.properties").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        "sasl.username=service\nsasl.password=pw-service\n"
    )
    options = ("--cluster-login", "--command-config", str(tmp_path / "users.properties"))
    with EmbeddedBroker(config=config) as broker:
        broker.add_scram_users(["SCRAM-SHA-512=[name=ann,password=pw-ann]"])
        with running_page(broker, *options) as (process, url):
            for login in ("", "ann:pw-service", "service:pw-service"):
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    fetch(url, login=login)
            wait_until(lambda: b'"is_up":true' in fetch(f"{url}api/overview", login="ann:pw-ann"), "it collects")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_wrong_usage_is_refused_before_anything_is_served(
    headrace: Command, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    monkeypatch.delenv("HEADRACE_UI_LOGIN", raising=False)
    outcome = headrace("ui", "--host", "0.0.0.0", *server)
    assert (outcome.code, "a login is required" in outcome.err) == (1, True)
    monkeypatch.setenv("HEADRACE_UI_LOGIN", "ops:tiny-secret")
    outcome = headrace("ui", *server)
    assert (outcome.code, "Invalid login" in outcome.err, "tiny-secret" in outcome.err) == (1, True, False)
    monkeypatch.delenv("HEADRACE_UI_LOGIN")
    (tmp_path / "no.pem").write_text("nothing")
    outcome = headrace("ui", "--port", "0", "--tls-certificate", str(tmp_path / "no.pem"), *server)
    assert (outcome.code, "cannot be used" in outcome.err) == (1, True)
    assert headrace("ui", "--tls-key", str(tmp_path / "no.pem"), *server).code == 2
    assert headrace("ui", "--group-filter", "(", *server).code == 1
    taken = broker.bootstrap_servers.rpartition(":")[2]
    assert "cannot be served" in headrace("ui", "--port", taken, *server).err
    outcome = headrace("ui", "--cluster-login", *server)
    assert (outcome.code, "no password that the cluster could check" in outcome.err) == (1, True)
    outcome = headrace("ui", "--application-host", "10.0.0.0/99", *server)
    assert (outcome.code, "--application-host" in outcome.err) == (1, True)
    (tmp_path / "token").write_text("two words")
    outcome = headrace("ui", "--application-token-file", str(tmp_path / "token"), *server)
    assert (outcome.code, "has no token" in outcome.err) == (1, True)
    monkeypatch.setenv("HEADRACE_UI_LOGIN", LOGIN)
    assert headrace("ui", "--cluster-login", *server).code == 2
