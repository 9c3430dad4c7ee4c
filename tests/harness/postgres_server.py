"""A PostgreSQL server in a directory of its own, as a process of the tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from tests.harness.polling import wait_until
from tests.harness.ports import find_free_port

from headrace.spark.sinks.postgres import PostgresConnection

__all__ = ["PASSWORD", "PostgresServer", "find_binaries", "skip_without_postgres"]

USER = "etl"
PASSWORD = "p/w:1@%x"  # each of these has a meaning in a URL
IN_URL = "p%2Fw%3A1%40%25x"


def find_binaries() -> Path | None:
    """Return the directory of `initdb` and `postgres`; Debian's packages do not put it into PATH."""
    for place in (shutil.which("initdb"), *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)):
        if place is not None and (Path(place).resolve().parent / "postgres").exists():
            return Path(place).resolve().parent
    return None


def skip_without_postgres() -> None:
    """Skip a test where no server can be started."""
    if find_binaries() is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    pytest.importorskip("adbc_driver_postgresql", reason='needs the driver: pip install "headrace[postgres]"')


class PostgresServer:
    """A server on a port of the loopback, whose user `etl` logs in with `PASSWORD`."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = {"fsync": "off", **(settings or {})}
        self._bin = find_binaries()
        self.port = find_free_port()
        # Not below pytest's own directory: the server runs as another user, who may not enter it.
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-pg-"))
        self._process: subprocess.Popen[Any] | None = None

    def url(self, database: str = "postgres", *, user: str = USER, password: str = IN_URL, more: str = "") -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}{more}"

    def __enter__(self) -> Self:
        try:
            self._initialize()
            self.start()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it takes connections."""
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), **self._settings}
        flags = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        directory = str(self.directory)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", f"{directory}/data", "-k", directory, *flags],  # type: ignore[operator]
                stdout=log,
                stderr=log,
                cwd=directory,
                **self._owner(),
            )
        wait_until(self._is_up, "the PostgreSQL server")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its sessions, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    @contextlib.contextmanager
    def connection(self, database: str = "postgres") -> Iterator[PostgresConnection]:
        connection = PostgresConnection(self.url(database))
        try:
            yield connection
        finally:
            connection.close()

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own."""
        with self.connection() as connection:
            return connection.execute(statement, *values)

    def _initialize(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            owner = pwd.getpwnam("nobody")
            for path in (self.directory, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = [str(self._bin / "initdb"), "-D", f"{self.directory}/data", "-U", USER, "-A", "scram-sha-256"]  # type: ignore[operator]
        command += [f"--pwfile={secret}", "--no-sync", "--no-locale", "-E", "UTF8"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory, **self._owner())

    def _owner(self) -> dict[str, Any]:
        """Return the user of the process: PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return {}
        owner = pwd.getpwnam("nobody")
        return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    def _is_up(self) -> bool:
        try:
            with self.connection() as connection:
                return bool(connection.execute("SELECT 1"))
        except OSError:
            return False
