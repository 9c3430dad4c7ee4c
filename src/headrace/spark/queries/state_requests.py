"""Answers to requests for state: which store, which task, which rows, in which form.

    GET /v1/stores                                       all stores that can be queried
    GET /v1/stores/{store}                               its key, its columns, its partitions
    GET /v1/stores/{store}/key?key=                      the row of a key
    GET /v1/stores/{store}/range?partition=&first=&last=&limit=
    GET /v1/stores/{store}/windows?partition=&key=&from=&to=&limit=
    GET /v1/stores/{store}/scan?partition=               all rows of a task, as an Arrow stream

`key` is JSON (`key_values`). `stale=allowed` takes a standby's copy as well. Where another instance has the task the
answer is 307 with its address; while it has no owner 503 with Retry-After. Rows of a page are JSON as the application
writes it into topics.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.client.deadline import Deadline
from headrace.client.membership.endpoints import Endpoint
from headrace.errors import ConfigError, HeadraceError, StateError
from headrace.protocol.partitioner import partition_for_key
from headrace.spark.formats import encode_value_json
from headrace.spark.queries.aggregate_queries import AggregateQueries, Page
from headrace.spark.queries.http_requests import ARROW, Answer, Request, problem
from headrace.spark.queries.key_values import parse_json, timestamp_us
from headrace.spark.runtime.stores.committed_view import CommittedView

__all__ = ["QueriedStore", "StateAccess", "StateRequests", "ViewFacts"]

MOST_BODY_BYTES = 16 << 20
DEFAULT_ROWS = 1_000
SCAN_ROWS = 65_536  # of a record batch
_STATUS = {
    "bad-value": 400,
    "state-query-refused": 422,
    "state-query-too-large": 413,
    "state-moving": 503,
    "state-corrupt": 503,  # it is set aside and rebuilt by its next writer
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueriedStore:
    """A store that can be queried, the same in each task of its subtopology.

    Attributes:
        topic: A topic that its tasks read: task p is where partition p of it is.
        is_repartitioned: Whether the topic is partitioned by the key, by Kafka's partitioner. Otherwise producers
            outside of the application decide where a key is.
    """

    subtopology: str
    topic: str
    is_repartitioned: bool
    queries: AggregateQueries


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFacts:
    """State that an answer is made of.

    Attributes:
        role: "active", or "standby" for a copy that may be behind.
        lag: Changelog records that a copy lacks, as last seen; 0 for the active task.
        input_offsets: Offsets of the input that the rows include, exclusive; empty for a copy.
    """

    role: str
    changelog_offset: int
    lag: int
    input_offsets: Mapping[str, int]
    member_epoch: int

    def document(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "changelog_offset": self.changelog_offset,
            "lag": self.lag,
            "input_offsets": dict(self.input_offsets),
            "member_epoch": self.member_epoch,
        }


class Elsewhere(Exception):
    """Another instance has the task."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(str(endpoint))
        self.endpoint = endpoint


View = tuple[CommittedView, ViewFacts]


class StateAccess(Protocol):
    """Stores of an instance."""

    @property
    def stores(self) -> Mapping[str, QueriedStore]:
        """The stores by their names."""

    def partitions(self, store: QueriedStore) -> int:
        """Return the number of the store's tasks. Raises HeadraceError."""

    def view(self, store: QueriedStore, partition: int, *, allow_stale: bool) -> AbstractContextManager[View]:
        """Return a view of the committed values of one task. It may be used by one thread after another.

        Raises:
            Elsewhere: another instance has the task.
            StateError: state-moving.
        """


class StateRequests:
    """Answers requests from the stores of an instance. Its methods may be called from any thread."""

    def __init__(self, access: StateAccess, *, most_rows: int) -> None:
        """`most_rows`: in one answer, other than a scan."""
        self._access, self._most_rows = access, most_rows

    def answer(self, request: Request, deadline: Deadline) -> Answer:
        """Return the response to a request. `deadline`: after it, a query over many rows gives up."""
        try:
            return self._routed(request, deadline)
        except Elsewhere as elsewhere:
            location = f"http://{_authority(elsewhere.endpoint)}{request.target}"
            return problem(307, "state-elsewhere", f"The task runs at {elsewhere.endpoint}.", Location=location)
        except HeadraceError as error:
            status = _STATUS.get(error.code, 500)
            more = {"Retry_After": "1"} if status == 503 else {}
            return problem(status, error.code, error.message, error.fix, **more)

    def _routed(self, request: Request, deadline: Deadline) -> Answer:
        match request.path:
            case ("v1", "stores"):
                return _json({"stores": [self._described(name) for name in sorted(self._access.stores)]})
            case ("v1", "stores", name) if name in self._access.stores:
                return _json(self._described(name))
            case ("v1", "stores", name, kind) if name in self._access.stores and kind in _KINDS:
                return _KINDS[kind](self, name, request, deadline)
            case ("v1", "stores", name, *_) if name not in self._access.stores:
                known = ", ".join(sorted(self._access.stores)) or "none"
                return problem(404, "bad-value", f"There is no store {name[:200]!r}.", f"Stores: {known}.")
            case _:
                return problem(404, "bad-value", "There is nothing here.", "See /v1/stores.")

    def _described(self, name: str) -> dict[str, Any]:
        store = self._access.stores[name]
        queries = store.queries
        return {
            "store": name,
            "key": [
                {"name": column, "type": str(kind), "column": shown, "is_window": is_window}
                for (column, kind), (shown, is_window) in zip(queries.columns, queries.shown_keys, strict=True)
            ],
            "columns": list(queries.result_names),
            "schema": queries.aggregate.output_schema_json,
            "partitions": self._access.partitions(store),
            "subtopology": store.subtopology,
            "repartitioned": store.is_repartitioned,
            "ranges": queries.takes_ranges,
            "windows": queries.takes_windows,
        }

    # -- kinds of queries ---------------------------------------------------------------------------------------------

    def _key(self, name: str, request: Request, deadline: Deadline) -> Answer:
        del deadline
        store = self._access.stores[name]
        given = _Parameters(request.parameters, {"key", "partition", "stale"})
        value = parse_json(given.text("key"), "key")
        key = store.queries.key(value)
        partition = self._partition(store, given) if given.has("partition") else None
        if partition is None:
            if not store.is_repartitioned:
                raise ConfigError(
                    "bad-value",
                    f'The partition of a key of "{name}" is decided by the producers of {store.topic}.',
                    "Name it as well: partition=0. StateQuery asks each.",
                )
            partition = partition_for_key(key, self._access.partitions(store))
        with self._access.view(store, partition, allow_stale=given.allows_stale) as (view, facts):
            page = store.queries.get(view, value)
        return _page(name, partition, page, facts)

    def _range(self, name: str, request: Request, deadline: Deadline) -> Answer:
        del deadline
        store = self._access.stores[name]
        given = _Parameters(request.parameters, {"partition", "first", "last", "limit", "stale"})
        partition, limit = self._partition(store, given), given.limit(self._most_rows)
        first, last = given.optional("first"), given.optional("last")
        with self._access.view(store, partition, allow_stale=given.allows_stale) as (view, facts):
            page = store.queries.range(view, first, last, limit)
        return _page(name, partition, page, facts)

    def _windows(self, name: str, request: Request, deadline: Deadline) -> Answer:
        del deadline
        store = self._access.stores[name]
        given = _Parameters(request.parameters, {"partition", "key", "from", "to", "limit", "stale"})
        partition, limit = self._partition(store, given), given.limit(self._most_rows)
        value = parse_json(given.text("key"), "key")
        first, end = (timestamp_us(given.text(each), each) for each in ("from", "to"))
        with self._access.view(store, partition, allow_stale=given.allows_stale) as (view, facts):
            page = store.queries.windows(view, value, first, end, limit)
        return _page(name, partition, page, facts)

    def _scan(self, name: str, request: Request, deadline: Deadline) -> Answer:
        store = self._access.stores[name]
        given = _Parameters(request.parameters, {"partition", "stale"})
        partition = self._partition(store, given)
        pieces = self._scanned(name, store, partition, given.allows_stale, deadline)
        # The first piece is made now, so that whatever refuses the query is still in time for the status.
        first = next(pieces)
        return Answer(status=200, content_type=ARROW, pieces=_behind(first, pieces))

    def _scanned(
        self, name: str, store: QueriedStore, partition: int, allow_stale: bool, deadline: Deadline
    ) -> Iterator[bytes]:
        with ExitStack() as stack:
            view, facts = stack.enter_context(self._access.view(store, partition, allow_stale=allow_stale))
            about = {"store": name, "partition": partition, "state": facts.document()}
            sink = _Chunks()
            writer = None
            for rows in store.queries.scan(view):
                if deadline.passed:
                    raise StateError(
                        "state-query-timeout", "the scan took too long", "Scan fewer partitions at a time."
                    )
                if writer is None:
                    schema = rows.schema.with_metadata({"headrace.state": json.dumps(about)})
                    writer = pa.ipc.new_stream(sink, schema)
                for batch in rows.to_batches(max_chunksize=SCAN_ROWS):
                    writer.write_batch(batch.replace_schema_metadata(schema.metadata))
                yield sink.take()
            assert writer is not None  # a scan has one piece at least
            writer.close()
            yield sink.take()

    def _partition(self, store: QueriedStore, given: _Parameters) -> int:
        partition, count = given.integer("partition"), self._access.partitions(store)
        if not 0 <= partition < count:
            raise ConfigError("bad-value", f"Invalid partition {partition}.", f"Name one of 0 to {count - 1}.")
        return partition


_KINDS: Mapping[str, Callable[[StateRequests, str, Request, Deadline], Answer]] = {
    "key": StateRequests._key,
    "range": StateRequests._range,
    "windows": StateRequests._windows,
    "scan": StateRequests._scan,
}


class _Parameters:
    """Parameters of a request, all of which are known."""

    def __init__(self, given: Mapping[str, str], known: set[str]) -> None:
        self._given = given
        unknown = sorted(set(given) - known)
        if unknown:
            raise ConfigError(
                "bad-value", f"Unknown parameter {unknown[0][:100]!r}.", f"Known: {', '.join(sorted(known))}."
            )

    def has(self, name: str) -> bool:
        return name in self._given

    def optional(self, name: str) -> str | None:
        return self._given.get(name)

    def text(self, name: str) -> str:
        if name not in self._given:
            raise ConfigError("bad-value", f"The parameter {name} is missing.", f"Add {name}=..")
        return self._given[name]

    def integer(self, name: str) -> int:
        text = self.text(name)
        # Few digits: Python's own conversion takes any number of them, of any script.
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise ConfigError("bad-value", f"Invalid {name} {text[:100]!r}.", "Give a number, 0 or more.")
        return int(text)

    def limit(self, most: int) -> int:
        if not self.has("limit"):
            return min(DEFAULT_ROWS, most)
        limit = self.integer("limit")
        if not 1 <= limit <= most:
            raise ConfigError(
                "bad-value",
                f"Invalid limit {limit}.",
                f"Give 1 to {most} rows (headrace.state.query.max.rows); a scan has no such limit.",
            )
        return limit

    @property
    def allows_stale(self) -> bool:
        given = self._given.get("stale", "refused")
        if given not in ("allowed", "refused"):
            raise ConfigError("bad-value", f"Invalid stale {given[:100]!r}.", "Write stale=allowed, or leave it out.")
        return given == "allowed"


class _Chunks:
    """A file that Arrow writes into and that is emptied piece by piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def take(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found

    def flush(self) -> None:
        """Everything is written already."""

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _behind(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _page(name: str, partition: int, page: Page, facts: ViewFacts) -> Answer:
    rows = [
        row
        for batch in page.rows.combine_chunks().to_batches()
        for row in encode_value_json(batch, batch.schema.names).to_pylist()
    ]
    if sum(map(len, rows)) > MOST_BODY_BYTES:
        raise StateError(
            "state-query-too-large",
            f"the rows are more than {MOST_BODY_BYTES >> 20} MB",
            "Ask for fewer: limit=10. A scan has no such limit.",
        )
    about = {"store": name, "partition": partition, "state": facts.document(), "truncated": page.is_cut}
    # Rows are JSON already: they are put between the brackets of an empty list, which ends the document.
    head = json.dumps({**about, "rows": []}).encode()
    return Answer(status=200, body=head[: -len(b"]}")] + b",".join(rows) + b"]}\n")


def _json(document: dict[str, Any]) -> Answer:
    return Answer(status=200, body=json.dumps(document).encode() + b"\n")


def _authority(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host and not endpoint.host.startswith("[") else endpoint.host
    return f"{host}:{endpoint.port}"
