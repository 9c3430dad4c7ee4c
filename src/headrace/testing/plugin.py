"""The pytest plugin, found by its entry point: a Kafka broker as a fixture. docs/how-to/testing.md.

Importing this module imports nothing else of Headrace and nothing that pytest has not loaded: a run that uses none of
the fixtures pays nothing. Switched off with `-p no:headrace`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker

__all__ = [
    "kafka_broker",
    "kafka_group",
    "kafka_session_broker",
    "kafka_topic",
    "pytest_addoption",
    "pytest_configure",
    "pytest_runtest_teardown",
]

_MARKER = (
    "kafka_broker(topics=None, config=None, clock=None): what the fixture kafka_broker starts with: topics (name to "
    "partitions), broker settings by Kafka's names, a headrace.testing.ManualClock."
)
_ALLOWED = frozenset({"topics", "config", "clock"})
_NOT_FOR_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")
_LONGEST_NAME = 150
_numbers = itertools.count(1)
_SESSION_BROKER: pytest.StashKey[Any] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headrace", "Kafka brokers for tests (headrace)")
    group.addoption(
        "--kafka",
        metavar="HOST:PORT",
        default=None,
        help="Run the tests that use kafka_broker and kafka_session_broker against this cluster instead of a broker "
        "in this process. Tests that need faults, the clock or kill are skipped.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    _leave_asserts_alone(config)


def _leave_asserts_alone(config: pytest.Config) -> None:
    """pytest compiles every module of a package that brings a plugin anew, for the sake of its asserts; where nothing
    may be cached (PYTHONDONTWRITEBYTECODE) in each run. That is longer than a broker takes to start, for nothing.
    There is no public way to decline; a pytest without these two attributes does as it likes.
    """
    rewriting = getattr(config.pluginmanager, "rewrite_hook", None)
    marked, looked_up = (getattr(rewriting, name, None) for name in ("_must_rewrite", "_marked_for_rewrite_cache"))
    if isinstance(marked, set) and isinstance(looked_up, dict):
        marked.discard("headrace")
        looked_up.clear()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A fresh broker for this test alone, on a free port. `@pytest.mark.kafka_broker(topics={"orders": 4})` sets it up.

    With --kafka: that cluster; the topics named must not exist there yet, and are deleted behind the test.
    """
    wanted = _wanted(request)
    topics = dict(wanted.get("topics") or {})
    with _broker(request.config, wanted) as broker:
        if not request.config.getoption("--kafka"):
            broker.create_topics(topics)
            yield broker
            return
        broker.create_new_topics(topics)
        try:
            yield broker
        finally:
            broker.delete_topics(topics)


@pytest.fixture(scope="session")
def kafka_session_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """One broker for all tests of this run (of this worker, with pytest-xdist). Take names from kafka_topic and
    kafka_group, so that tests do not meet."""
    with _broker(request.config, {}) as broker:
        request.config.stash[_SESSION_BROKER] = broker
        yield broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test did to the broker that all share must not meet the next one."""
    broker = item.config.stash.get(_SESSION_BROKER, None)
    if broker is not None and not item.config.getoption("--kafka"):
        broker.faults.clear()
        broker.start()


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """`kafka_topic(partitions=1, configs=None) -> name`: a new topic with a name of its own, deleted behind the test.

    On the broker of this test, if it has one (kafka_broker), else on kafka_session_broker.
    """
    fixture = "kafka_broker" if "kafka_broker" in request.fixturenames else "kafka_session_broker"
    broker = request.getfixturevalue(fixture)
    made: list[str] = []

    def create(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = _unique_name(request)
        broker.create_topics({name: partitions}, configs)
        made.append(name)
        return name

    yield create
    if made and (fixture == "kafka_session_broker" or request.config.getoption("--kafka")):
        broker.delete_topics(made)


@pytest.fixture
def kafka_group(request: pytest.FixtureRequest) -> Callable[[], str]:
    """`kafka_group() -> group id`: one that nobody else has."""
    return lambda: _unique_name(request)


def _broker(config: pytest.Config, wanted: Mapping[str, Any]) -> Any:
    cluster = config.getoption("--kafka")
    if cluster is None:
        from headrace.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(config=wanted.get("config"), clock=wanted.get("clock"))
    for what, name in (("broker settings", "config"), ("a clock that the test moves", "clock")):
        if wanted.get(name) is not None:
            pytest.skip(f"this test asks for {what}, which needs a broker of its own: run it without --kafka")
    from headrace.testing.real_cluster import RealCluster

    return RealCluster(cluster)


def _wanted(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The marks of the test, its class and its module; the nearest comes first."""
    wanted: dict[str, Any] = {}
    for mark in request.node.iter_markers("kafka_broker"):
        if mark.args or not _ALLOWED.issuperset(mark.kwargs):
            pytest.fail(f"The mark is written as {_MARKER}", pytrace=False)
        wanted = mark.kwargs | wanted
    return wanted


def _unique_name(request: pytest.FixtureRequest) -> str:
    """After the test; unique on a cluster that other runs and workers use, too."""
    import secrets

    test = _NOT_FOR_NAMES.sub("-", request.node.name).strip("-.")[:_LONGEST_NAME]
    return f"{test}-{secrets.token_hex(4)}-{next(_numbers)}"
