"""What a user gets wrong, as the user meets it: a command line, an exit code, one clear error and no traceback.

Each is here once for the way it is said. What becomes of the records is looked at where no process has to be started
for it: `runtime/batches/test_batch_runner` (undecodable records), `runtime/test_bad_circumstances` (permissions, sizes,
a full disk), `runtime/test_state_troubles` (a corrupt store, a second process), `dsl/test_unsupported` (a shuffle).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from tests.harness.ports import find_free_port
from tests.longer import longer
from tests.spark.application.processes import (
    PROGRAMS,
    BrokerProcess,
    flight,
    headrace,
    newest,
    records_of,
    send_flights,
)

from headrace.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

PROGRAM = str(PROGRAMS / "late_flights.py")
GOOD = range(40)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as running:
        yield running


def run(tmp_path: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """`headrace run late_flights.py`, until caught up: the exit code and what it said on standard error."""
    settings = {"HEADRACE_STATE_DIR": str(tmp_path / "state"), "MASTER": "local[2]", **env}
    out = headrace("run", PROGRAM, "--until", "caught-up", *arguments, env=settings)
    assert out.stdout == b"", "talk belongs to standard error"
    return out.returncode, out.stderr.decode()


def the_error(said: str) -> list[str]:
    """The lines of the one error; fails when there are two, or a traceback."""
    assert "Traceback" not in said, said
    assert "Exception in thread" not in said, said
    lines = said.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error[")]
    assert len(starts) == 1, said
    found = lines[starts[0] :]
    assert any(line.startswith("fix ") for line in found), said
    return found


def test_no_broker_at_the_address(tmp_path: Path) -> None:
    port = find_free_port()
    code, said = run(tmp_path, "--bootstrap-server", f"127.0.0.1:{port}")
    assert code == 3
    error = the_error(said)
    assert error[0].startswith("error[broker-unreachable]: ")
    assert f"127.0.0.1:{port}" in error[0]


def test_another_server_at_the_address() -> None:
    """A server that speaks something else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=greet_like_a_web_server, args=(server,), daemon=True).start()
        out = headrace("topics", "--list", "--bootstrap-server", f"127.0.0.1:{port}")
    assert out.returncode in {1, 3}
    error = the_error(out.stderr.decode())
    assert error[0].startswith(("error[not-kafka]: ", "error[broker-unreachable]: "))
    assert f"127.0.0.1:{port}" in error[0]


def greet_like_a_web_server(server: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed at the end of the test
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


@longer  # `app.run()` waits in test_running
def test_the_topic_is_missing(broker: BrokerProcess, tmp_path: Path) -> None:
    """`headrace run` waits for it, says how to create it, and creates nothing itself."""
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "run",
        PROGRAM,
        "--bootstrap-server",
        broker.bootstrap_servers,
    ]
    environment = {**os.environ, "HEADRACE_STATE_DIR": str(tmp_path / "state"), "MASTER": "local[2]"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = next(line for line in running.stderr if line.startswith("Waiting: "))
        assert f"--bootstrap-server {broker.bootstrap_servers} --create --topic flights" in said
        with Admin(broker.bootstrap_servers) as admin:
            assert "flights" not in admin.list_topics(), "reading a topic does not create it"
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 0


@pytest.fixture
def with_a_bad_record(broker: BrokerProcess) -> BrokerProcess:
    """Good flights, then what is no JSON at flights-1@20, then good ones again."""
    with Admin(broker.bootstrap_servers) as admin:
        admin.create_topics({"flights": 2})
    send_flights(broker.bootstrap_servers, GOOD, 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("flights", value=b'{"id": 7, "dep_delay": ', key=b"torn", partition=1)
    assert producer.flush(30) == 0
    send_flights(broker.bootstrap_servers, range(len(GOOD), len(GOOD) + 40), 2)
    return broker


def late(numbers: range) -> set[str]:
    return {str(n) for n in numbers if (flight(n)["dep_delay"] or 0) > 30}


def test_undecodable_json_fails_and_is_named(with_a_bad_record: BrokerProcess, tmp_path: Path) -> None:
    servers = with_a_bad_record.bootstrap_servers
    code, said = run(tmp_path, "--bootstrap-server", servers)
    assert code == 1
    error = the_error(said)
    assert error[0].startswith("error[undecodable]: ")
    assert "flights-1@20" in error[0]
    with Admin(servers) as admin:
        assert admin.committed_offsets("late-flights")["flights", 1] == 20, "nothing behind the record is committed"
    assert late(GOOD) <= set(newest(servers, "late-flights-late")), "nothing before it is lost"


@longer
def test_undecodable_json_goes_to_the_dead_letter_topic(with_a_bad_record: BrokerProcess, tmp_path: Path) -> None:
    servers = with_a_bad_record.bootstrap_servers
    code, said = run(tmp_path, "--bootstrap-server", servers, FLIGHTS_ON_ERROR="dead-letter")
    assert code == 0, said
    assert "error[" not in said
    [dead] = records_of(servers, "flights.bad")
    assert (dead.key(), dead.value()) == (b"torn", b'{"id": 7, "dep_delay": ')
    headers = dict(dead.headers() or [])
    assert (headers["headrace.topic"], headers["headrace.partition"], headers["headrace.offset"]) == (
        b"flights",
        b"1",
        b"20",
    )
    assert set(newest(servers, "late-flights-late")) == late(range(len(GOOD) + 40))


def test_java_is_missing(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    code, said = run(tmp_path, "--bootstrap-server", f"127.0.0.1:{find_free_port()}", **environment)
    assert code == 1
    error = the_error(said)
    assert error[0].startswith("error[java-missing]: Spark needs Java 17")


def test_a_broker_needs_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with BrokerProcess(tmp_path / "data") as broker:
        out = headrace("topics", "--list", "--bootstrap-server", broker.bootstrap_servers)
        assert (out.returncode, out.stdout) == (0, b"__consumer_offsets\n"), out.stderr


def test_the_port_is_taken(broker: BrokerProcess, tmp_path: Path) -> None:
    out = headrace("broker", "--data-dir", str(tmp_path / "other"), "--port", str(broker.port))
    assert out.returncode == 1
    error = the_error(out.stderr.decode())
    assert error[0].startswith("error[port-taken]: ")
    assert str(broker.port) in error[0]


def test_the_directory_is_taken(broker: BrokerProcess) -> None:
    out = headrace("broker", "--data-dir", str(broker.directory), "--port", str(find_free_port()))
    assert out.returncode == 1
    assert str(broker.directory) in "\n".join(the_error(out.stderr.decode()))


def test_the_file_is_missing_or_broken(tmp_path: Path) -> None:
    (tmp_path / "flights.py").write_text("from headrace import StreamsApp\napp = StreemsApp('x')\n")
    for name, code in (("fligths.py", "app-missing"), ("flights.py", "user-code")):
        out = headrace("describe", str(tmp_path / name), env={"MASTER": "local[1]"})
        assert out.returncode == 1
        assert the_error(out.stderr.decode())[0].startswith(f"error[{code}]: ")
