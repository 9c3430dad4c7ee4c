"""pytest plugin, found by its entry point: a Kafka broker as a fixture. See docs/how-to/testing.md.

Importing this module imports nothing else of Headrace, and nothing that pytest has not loaded, so a test run without
these fixtures pays nothing. Disable it with `-p no:headrace`.
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
# Kafka allows 249 characters in the name of a topic. The test's part is cut so that the suffix of `_unique_name`, which
# makes the name unique, always fits.
_MAX_NAME_LENGTH = 150
_numbers = itertools.count(1)
# In the stash of the pytest configuration, not in a global: a test of a plugin runs a second pytest in the same process
# (pytester), whose teardown would clear the faults of the outer run's broker.
_SESSION_BROKER: pytest.StashKey[EmbeddedBroker] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --kafka."""
    group = parser.getgroup("headrace", "Kafka brokers for tests (headrace)")
    group.addoption(
        "--kafka",
        metavar="HOST:PORT",
        default=None,
        help="Run the tests that use kafka_broker and kafka_session_broker against this cluster instead of a broker "
        "in this process. Tests that need faults, the clock or kill are skipped.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)
    _disable_assert_rewriting(config)


def _disable_assert_rewriting(config: pytest.Config) -> None:
    """Keep pytest from recompiling Headrace.

    pytest rewrites the asserts of every module of a package that has a plugin. Where bytecode is not cached
    (PYTHONDONTWRITEBYTECODE) it does so in each run, which takes longer than the start of a broker. There is no public
    way to opt out; a pytest without these two attributes keeps its default.
    """
    rewriting = getattr(config.pluginmanager, "rewrite_hook", None)
    marked, cache = (getattr(rewriting, name, None) for name in ("_must_rewrite", "_marked_for_rewrite_cache"))
    if isinstance(marked, set) and isinstance(cache, dict):
        marked.discard("headrace")
        cache.clear()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A new broker for this test alone, on a free port.

    `@pytest.mark.kafka_broker(topics={"orders": 4})` configures it.

    With --kafka it is that cluster. The topics of the marker must not exist there, and are deleted after the test.
    """
    arguments = _marker_arguments(request)
    topics = dict(arguments.get("topics") or {})
    # An embedded broker is thrown away with its topics. On a cluster that stays, the fixture cleans up what it created,
    # and refuses to touch what it did not.
    with _broker(request.config, arguments) as broker:
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
    """One broker for all tests of this run (with pytest-xdist: of this worker).

    Take names from kafka_topic and kafka_group, so that tests do not affect each other.
    """
    with _broker(request.config, {}) as broker:
        request.config.stash[_SESSION_BROKER] = broker
        yield broker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Clear the faults of the shared broker, and start it again if the test stopped it."""
    broker = item.config.stash.get(_SESSION_BROKER, None)
    # `tryfirst`: before the finalizers of other fixtures, which may need a broker without faults to clean up.
    if broker is not None and not item.config.getoption("--kafka"):
        broker.faults.clear()
        broker.start()


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """`kafka_topic(partitions=1, configs=None) -> name`: creates a topic with a unique name; deleted after the test.

    It is created on the broker of this test, if it has one (kafka_broker), else on kafka_session_broker.
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
    # A broker of this test alone takes its topics with it.
    if made and (fixture == "kafka_session_broker" or request.config.getoption("--kafka")):
        broker.delete_topics(made)


@pytest.fixture
def kafka_group(request: pytest.FixtureRequest) -> Callable[[], str]:
    """`kafka_group() -> group id`: a unique group id."""
    return lambda: _unique_name(request)


def _broker(config: pytest.Config, arguments: Mapping[str, Any]) -> Any:
    cluster = config.getoption("--kafka")
    if cluster is None:
        # Imported by the first test that needs a broker, not when pytest loads the plugin.
        from headrace.broker.embedded import EmbeddedBroker

        return EmbeddedBroker(config=arguments.get("config"), clock=arguments.get("clock"))
    for what, name in (("broker settings", "config"), ("a clock that the test moves", "clock")):
        if arguments.get(name) is not None:
            # Skipped, not failed: the test is right, but a running cluster cannot be given its settings or its clock.
            pytest.skip(f"this test asks for {what}, which needs a broker of its own: run it without --kafka")
    from headrace.testing.real_cluster import RealCluster

    return RealCluster(cluster)


def _marker_arguments(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the markers of the test, its class and its module; the nearest takes precedence."""
    arguments: dict[str, Any] = {}
    for mark in request.node.iter_markers("kafka_broker"):
        if mark.args or not _ALLOWED.issuperset(mark.kwargs):
            pytest.fail(f"The mark is written as {_MARKER}", pytrace=False)
        # `iter_markers` yields the nearest marker first, so what is known already takes precedence over the next one.
        arguments = mark.kwargs | arguments
    return arguments


def _unique_name(request: pytest.FixtureRequest) -> str:
    """Return a name after the test, unique also on a cluster that other runs and workers use."""
    import secrets

    # The random part (32 bits) keeps apart runs and xdist workers, which share a cluster; the number keeps apart names
    # of one process.
    test = _NOT_FOR_NAMES.sub("-", request.node.name).strip("-.")[:_MAX_NAME_LENGTH]
    return f"{test}-{secrets.token_hex(4)}-{next(_numbers)}"
