"""The server of queries into state of a running instance: off unless `application.server` is set.

The setting is Kafka's: `host:port` under which other instances and clients reach this one. The group passes it to all
members (KIP-535), so each instance knows where the tasks of the others are answered for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.broker.network.listener import is_loopback
from headrace.client.deadline import Deadline
from headrace.client.membership.endpoints import Endpoint, EndpointMap
from headrace.errors import ConfigError
from headrace.spark.cluster_masters import is_cluster
from headrace.spark.frames import quoted
from headrace.spark.queries.application_document import APPLICATION_PATH, answer_application
from headrace.spark.queries.application_state import ApplicationState, queried_stores
from headrace.spark.queries.http_requests import Answer, Request
from headrace.spark.queries.http_server import HttpServer, ServerLimits
from headrace.spark.queries.state_requests import StateRequests
from headrace.spark.runtime.stores import bulk_load
from headrace.spark.runtime.stores.store_records import BatchKey, StoreIdentity
from headrace.spark.runtime.topic_access import now_ms
from headrace.spark.topology.nodes import Aggregate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.runtime.instance import RunningInstance
    from headrace.spark.runtime.stores.replicas import ReplicaProgress

__all__ = ["QueryServerSettings", "StateQueryServer", "query_server_settings"]

LEAST_TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryServerSettings:
    """Settings of the server, checked. `port` 0 takes a free one."""

    host: str  # that other processes know
    port: int
    bind_host: str
    token: str | None = field(repr=False)
    most_rows: int
    limits: ServerLimits


def query_server_settings(config: Mapping[str, int | str], master: str) -> QueryServerSettings | None:
    """Return the settings of the server; None if there is none.

    Raises:
        ConfigError: bad-value, cluster-unsupported.
    """
    text = str(config["application.server"])
    if not text:
        return None
    if is_cluster(master):
        raise ConfigError(
            "cluster-unsupported",
            "application.server on a Spark cluster: the stores are on the disks of the executors",
            'remove application.server, or use master="local[*]" and start one instance per host',
        )
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(
            "bad-value",
            f"Invalid application.server {text!r}.",
            "Set host:port; port 0 takes a free one.",
            key="application.server",
        )
    bind_host = str(config["headrace.state.query.host"]) or host.strip("[]")
    token_file = str(config["headrace.state.query.token.file"])
    if not token_file and not (is_loopback(bind_host) and is_loopback(host.strip("[]"))):
        raise ConfigError(
            "bad-value",
            f"application.server {text!r} can be reached from other machines, and every client may read the state.",
            "Set headrace.state.query.token.file to a file with a secret that clients send, or use 127.0.0.1.",
            key="headrace.state.query.token.file",
        )
    return QueryServerSettings(
        host=host,
        port=int(port),
        bind_host=bind_host,
        token=read_token(Path(token_file)) if token_file else None,
        most_rows=int(config["headrace.state.query.max.rows"]),
        limits=ServerLimits(
            requests=int(config["headrace.state.query.max.requests"]),
            timeout_s=int(config["headrace.state.query.timeout.ms"]) / 1000,
        ),
    )


def read_token(path: Path) -> str:
    """Return the token in a file. Raises ConfigError: bad-value."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "bad-value", f"headrace.state.query.token.file {path} cannot be read: {error}", "Check its path and rights."
        ) from error
    if len(token) < LEAST_TOKEN_CHARACTERS or len(token.split()) != 1:
        raise ConfigError(
            "bad-value",
            f"headrace.state.query.token.file {path} has no token of {LEAST_TOKEN_CHARACTERS} characters or more.",
            "Write one line of random characters into it: openssl rand -hex 32",
        )
    return token


class StateQueryServer:
    """Server of one instance. `start` and `close` belong to one thread."""

    def __init__(self, runtime: RunningInstance, settings: QueryServerSettings) -> None:
        """Start to listen. Answers are "moving" until the instance has tasks.

        Raises:
            ConfigError: port-taken, bad-value.
        """
        self._runtime = runtime
        # Compiled now, or loaded from the cache, and not by the first query.
        bulk_load.warm_up()
        self._server = HttpServer(
            self._answer,
            token=settings.token,
            limits=settings.limits,
        )
        host = settings.host.strip("[]")
        port = self._server.start(settings.bind_host, settings.port, own_host=host)
        self.endpoint = Endpoint(settings.host, port)
        """Address under which other processes reach this server."""
        self._state = ApplicationState(
            _Instance(runtime),
            queried_stores(runtime.compiled, _Evaluation(runtime.spark)),
            client=runtime.network_client(),
            own=self.endpoint,
            acceptable_lag=int(runtime.settings.config["acceptable.recovery.lag"]),
        )
        self._requests = StateRequests(self._state, most_rows=settings.most_rows)

    def _answer(self, request: Request, deadline: Deadline) -> Answer:
        if request.path == APPLICATION_PATH:
            return answer_application(self._runtime, now_ms=now_ms())
        return self._requests.answer(request, deadline)

    def close(self) -> None:
        """Stop to answer: from here on other instances may have the tasks."""
        self._server.close()
        self._state.close()


class _Instance:
    """A running instance as queries see it. See `InstanceState`."""

    def __init__(self, runtime: RunningInstance) -> None:
        self._runtime = runtime

    @property
    def member_epoch(self) -> int | None:
        snapshot = self._runtime.snapshot
        return snapshot.member_epoch if snapshot is not None else None

    @property
    def is_steady(self) -> bool:
        return self._runtime.pulse.is_steady

    @property
    def endpoints(self) -> EndpointMap:
        return self._runtime.endpoints

    @property
    def state_dir(self) -> Path:
        return self._runtime.directory.path

    def committed(self, subtopology: str) -> Mapping[int, BatchKey | None]:
        return self._runtime.runners[subtopology].committed()

    def copies(self) -> Mapping[tuple[str, int], ReplicaProgress]:
        return self._runtime.state.copies()

    def identity_of(self, subtopology: str, changelog_topic: str, schema_hash: str) -> StoreIdentity:
        factory = self._runtime.plan_factory
        topic_ids = factory.changelog_ids(self._runtime.compiled.subtopology(subtopology))
        return StoreIdentity(
            changelog_topic_id=topic_ids[changelog_topic], schema_hash=schema_hash, boot_id=factory.boot_id
        )


class _Evaluation:
    """Evaluates the SQL of an aggregate's results in the application's session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, groups: pa.Table, aggregate: Aggregate) -> pa.Table:
        frame = self._spark.createDataFrame(groups.combine_chunks())
        return frame.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in aggregate.results)).toArrow()
