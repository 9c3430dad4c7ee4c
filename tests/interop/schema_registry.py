"""A real schema registry: Apicurio in memory, one process, by its interface that is compatible with Confluent's.

`with RunningSchemaRegistry() as registry: registry.url`. It starts in about 5 s. Version 2.6 is the last one that runs
on Java 17.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.ports import find_free_ports
from tests.interop.kafka_jars import java, unpacked

__all__ = ["RunningSchemaRegistry", "registry_files"]

_VERSION = "2.6.13.Final"
_START_TIMEOUT_S = 90


def registry_files() -> str:
    """Directory of the registry's program, fetched through Maven once. Raises KafkaUnavailable."""
    return str(unpacked("io.apicurio", "apicurio-registry-app", _VERSION, "all"))


class RunningSchemaRegistry:
    """The process; `stop` and `start` may be called again, and what was registered is gone then."""

    def __init__(self) -> None:
        [self._port] = find_free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        settings = {
            "QUARKUS_HTTP_PORT": str(self._port),
            "QUARKUS_HTTP_HOST": "127.0.0.1",
        }
        with tempfile.NamedTemporaryFile(prefix="headrace-registry-", suffix=".log", delete=False) as self._log:
            self._process = subprocess.Popen(
                [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", f"apicurio-registry-app-{_VERSION}-runner.jar"],
                cwd=registry_files(),
                env=os.environ | settings,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                said = Path(self._log.name).read_text()[-2000:]
                self.stop()
                raise AssertionError(f"the schema registry does not start:\n{said}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            Path(self._log.name).unlink()
        self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
