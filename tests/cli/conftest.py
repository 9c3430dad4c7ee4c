"""A broker, members of a streams group, and the command line run in this process."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.command_lines import Command, Worker, flight_topology
from tests.cli.run_processes import PROGRAM
from tests.harness.brokers import STREAMS_GROUPS_WITHOUT_DELAYS, broker_fixture
from tests.harness.commands import CommandResult

from headrace.broker.embedded import EmbeddedBroker
from headrace.cli.main import run

broker = broker_fixture({"flights": 4}, config=STREAMS_GROUPS_WITHOUT_DELAYS)


@pytest.fixture
def headrace(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in this process."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)

    def command(*arguments: str) -> CommandResult:
        capfd.readouterr()
        # `headrace broker` logs to stderr for the whole process; later commands of this process must not.
        logger = logging.getLogger()
        handlers, level, logger.handlers = logger.handlers, logger.level, []
        try:
            code = run(arguments)
        finally:
            logger.handlers = handlers
            logger.setLevel(level)
        sys.stdout.flush()
        told = capfd.readouterr()
        return CommandResult(code, told.out, told.err)

    return command


@pytest.fixture
def join(broker: EmbeddedBroker) -> Iterator[Callable[..., Worker]]:
    """Lets a member join; all leave at the end."""
    workers: list[Worker] = []

    def one_more(client_id: str = "flight-delays-A", source: str = "flights") -> Worker:
        workers.append(Worker(broker, client_id, flight_topology(source)))
        return workers[-1]

    yield one_more
    for worker in workers:
        worker.close()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "flights.py"
    path.write_text(PROGRAM)
    return path
