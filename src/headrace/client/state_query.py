"""`StateQuery`: rows of a store of a running application, from whichever instance has them.

The group's description names the instances and their tasks; an instance that does not have a task names the one that
does. While a task moves, the query is repeated until its timeout. Rows come from one moment of each task, and from
committed micro-batches only.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode, urlsplit

from headrace.checked_api import checked_api
from headrace.client.admin import Admin
from headrace.client.admin_results import StreamsGroupDescription
from headrace.client.deadline import Backoff, Deadline
from headrace.client.membership.assignment import task_ids
from headrace.client.membership.endpoints import Endpoint
from headrace.client.network_client import NetworkClient
from headrace.errors import BrokerError, CannotConnect, ConfigError, HeadraceError, StateError
from headrace.protocol.partitioner import partition_for_key

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StateQuery", "StateRows", "TaskState"]

MOST_REDIRECTS = 4
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
MOST_BODY_BYTES = 64 << 20  # of an answer that is no scan
DESCRIPTION_AGE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """The state that rows of one task come from.

    Attributes:
        role: "active", or "standby" for a copy.
        lag: Changelog records that a copy lacked, as last seen; 0 for the active task.
        changelog_offset: End of the changelog records that the rows include.
        input_offsets: "topic-partition" → end of the input records that the rows include; empty for a copy.
    """

    partition: int
    role: str
    lag: int
    changelog_offset: int
    input_offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRows:
    """Rows of a store, with JSON's values, and what they come from. `truncated`: there are more behind the last one."""

    rows: tuple[Mapping[str, Any], ...]
    states: tuple[TaskState, ...]
    truncated: bool = False

    @property
    def row(self) -> Mapping[str, Any] | None:
        """The first row; None if there is none."""
        return self.rows[0] if self.rows else None

    @property
    def lag(self) -> int:
        """Changelog records that are missing in copies among the states."""
        return sum(state.lag for state in self.states)


class _Moving(Exception):
    """No instance answers at the moment."""


@checked_api(forwards=NetworkClient.__init__, unchecked=("key",))
class StateQuery:
    """Queries of one store of an application. A context manager; belongs to one thread at a time.

    Example:
        with StateQuery("localhost:9092", "word-count", store="by-word") as counts:
            print(counts.get("kafka").row)
    """

    def __init__(
        self,
        cluster: str | Sequence[str] | NetworkClient,
        group_id: str,
        *,
        store: str,
        token: str | None = None,
        timeout_ms: int = 30_000,
        **settings: Any,
    ) -> None:
        """Connect to nothing yet.

        Args:
            cluster: Bootstrap addresses, or a `NetworkClient`, which then stays open when the query is closed.
            group_id: Name of the application.
            store: Name of the store: the `name` of `agg`, as `headrace describe` shows it.
            token: Content of the application's `headrace.state.query.token.file`. It is sent to every instance of the
                group.
            timeout_ms: How long a query is repeated while tasks move.
            settings: Further arguments of `NetworkClient`.
        """
        self._admin = Admin(cluster, **settings)
        self._group_id, self._store, self._token, self._timeout_ms = group_id, store, token, timeout_ms
        self._connections: dict[Endpoint, http.client.HTTPConnection] = {}
        self._members: tuple[_Member, ...] = ()
        self._described_s: float | None = None
        self._facts: Mapping[str, Any] | None = None
        self._turn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._admin.close()

    def get(self, key: Any, *, allow_stale: bool = False) -> StateRows:
        """Return the row of a key, or no row.

        Args:
            key: Value of the grouping column; a list or a mapping where there are several. Times are `datetime` with a
                time zone; a window is named by its start.
            allow_stale: Whether a standby's copy may answer while no instance runs the task. It may be behind.

        Raises:
            StateError: state-moving after the timeout; state-query-refused.
            ConfigError: bad-value.
        """
        deadline = Deadline.after_ms(self._timeout_ms)
        facts = self._store_facts(deadline)
        text = _json(key)
        if facts["repartitioned"]:
            hint = self._partition_of(key, facts)
            return _rows([self._page("key", {"key": text}, hint, allow_stale, deadline)])
        # Producers outside of the application decide where a key is.
        return _rows(
            self._page("key", {"key": text, "partition": str(partition)}, partition, allow_stale, deadline)
            for partition in range(facts["partitions"])
        )

    def range(
        self, first: str | None = None, last: str | None = None, *, limit: int = 1_000, allow_stale: bool = False
    ) -> StateRows:
        """Return the rows from key `first` to key `last`, both included, in the order of UTF-8.

        Args:
            first: None begins with the least key.
            last: None ends with the greatest one.
            limit: The most rows; see `headrace.state.query.max.rows`.
            allow_stale: As in `get`.

        Raises:
            StateError: state-moving; state-query-refused for keys that are no single text.
            ConfigError: bad-value.
        """
        given = {name: value for name, value in (("first", first), ("last", last)) if value is not None}
        found = self._pages("range", {**given, "limit": str(limit)}, allow_stale)
        column = self._key_column(0)
        return _cut(found, limit, lambda row: str(row[column]).encode())

    def windows(
        self, key: Any, start: datetime, end: datetime, *, limit: int = 1_000, allow_stale: bool = False
    ) -> StateRows:
        """Return the open windows of a key that begin at `start` or later and before `end`, in their order.

        Windows that have closed are not in the store any more: the topic has their rows.

        Args:
            key: The other grouping columns, as in `get`; an empty list if there are none.
            start: With a time zone.
            end: With a time zone.
            limit: The most rows.
            allow_stale: As in `get`.

        Raises:
            StateError: state-moving; state-query-refused for aggregates without `withWatermark`.
            ConfigError: bad-value.
        """
        moments = {"from": _moment(start), "to": _moment(end)}
        found = self._pages("windows", {"key": _json(key), **moments, "limit": str(limit)}, allow_stale)
        [column] = [each["column"] for each in self._facts["key"] if each["is_window"]] if self._facts else [""]
        return _cut(found, limit, lambda row: str(row[column]["start"]).encode())

    def describe(self) -> Mapping[str, Any]:
        """Return the store's facts, as the application answers for it: `key`, `columns`, `schema`, `partitions`.

        Raises:
            StateError: state-moving.
            ConfigError: bad-value if the application has no such store.
        """
        return MappingProxyType(dict(self._store_facts(Deadline.after_ms(self._timeout_ms))))

    def scan(self, *, partition: int | None = None, allow_stale: bool = False) -> pa.Table:
        """Return all rows of the store. `headrace.states` of the schema's metadata has the state of each task as JSON.

        Args:
            partition: Of one task; None takes all.
            allow_stale: As in `get`.

        Raises:
            StateError: state-moving; state-query-refused.
        """
        import pyarrow as pa

        deadline = Deadline.after_ms(self._timeout_ms)
        facts = self._store_facts(deadline)
        tables: list[pa.Table] = []
        states = []
        for each in range(facts["partitions"]) if partition is None else (partition,):
            body = self._ask("scan", {"partition": str(each)}, each, allow_stale, deadline)
            table = pa.ipc.open_stream(body).read_all()
            states.append(json.loads(table.schema.metadata[b"headrace.state"]))
            tables.append(table.replace_schema_metadata(None))
        whole = pa.concat_tables(tables)
        return whole.replace_schema_metadata({"headrace.states": json.dumps(states)})

    # -- one query ----------------------------------------------------------------------------------------------------

    def _pages(self, kind: str, parameters: Mapping[str, str], allow_stale: bool) -> list[Mapping[str, Any]]:
        """Return an answer of each task."""
        deadline = Deadline.after_ms(self._timeout_ms)
        return [
            self._page(kind, {**parameters, "partition": str(partition)}, partition, allow_stale, deadline)
            for partition in range(self._store_facts(deadline)["partitions"])
        ]

    def _page(
        self, kind: str, parameters: Mapping[str, str], partition: int | None, allow_stale: bool, deadline: Deadline
    ) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self._ask(kind, parameters, partition, allow_stale, deadline))
        return found

    def _ask(
        self, kind: str, parameters: Mapping[str, str], partition: int | None, allow_stale: bool, deadline: Deadline
    ) -> bytes:
        """Return the body of an answer. `partition`: of the task, if it is known, to ask its owner first."""
        stale = {"stale": "allowed"} if allow_stale else {}
        target = f"/v1/stores/{quote(self._store, safe='')}"
        if kind:
            target += f"/{kind}?{urlencode({**parameters, **stale})}"
        pause, why = FIRST_PAUSE_S, "no instance of the group answers queries"
        while True:
            for endpoint in self._candidates(partition, allow_stale, deadline):
                try:
                    return self._fetch(endpoint, target, deadline)
                except _Moving as moving:
                    why = str(moving)
            if deadline.remaining_s <= pause:
                raise StateError(
                    "state-moving",
                    f'the store "{self._store}" of {self._group_id} gave no answer in {self._timeout_ms} ms: {why}',
                    "Ask again, or with a longer timeout_ms; allow_stale=True takes the copy of a standby.",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)
            self._described_s = None

    def _fetch(self, endpoint: Endpoint, target: str, deadline: Deadline) -> bytes:
        """Return the body of an answer, from the instance that an endpoint redirects to. Raises _Moving."""
        for _ in range(MOST_REDIRECTS):
            status, headers, body = self._exchange(endpoint, target, deadline)
            if status == http.client.OK:
                return body
            if status == http.client.SERVICE_UNAVAILABLE:
                raise _Moving(_problem(body)["message"])
            if status != http.client.TEMPORARY_REDIRECT:
                raise _refusal(status, body)
            endpoint = self._redirected(headers.get("location", ""), target)
        raise _Moving("the instances name each other as the owner of the task")

    def _redirected(self, location: str, target: str) -> Endpoint:
        """Return the endpoint of a redirect: an instance of the group, which alone may get the token."""
        parts = urlsplit(location)
        known = {str(member.endpoint): member.endpoint for member in self._members}
        if parts.netloc not in known:
            self._described_s = None  # described again before the next attempt
            raise _Moving(f"{parts.netloc or location!r} is no instance that the group knows")
        if location != f"http://{parts.netloc}{target}":
            raise _Moving("an instance answers with a redirect to another query")
        return known[parts.netloc]

    def _exchange(self, endpoint: Endpoint, target: str, deadline: Deadline) -> tuple[int, Mapping[str, str], bytes]:
        connection = self._connections.pop(endpoint, None)
        is_new = connection is None
        timeout_s = max(0.001, min(deadline.remaining_s, 60.0))
        if connection is None:
            connection = http.client.HTTPConnection(endpoint.host.strip("[]"), endpoint.port, timeout=timeout_s)
        elif connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection.request("GET", target, headers=headers)
            response = connection.getresponse()
            length = response.length
            if length is not None and length > MOST_BODY_BYTES:
                raise _Moving("an answer is too large")
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if not is_new:  # the server closes connections that were idle: asked once more on a new one
                return self._exchange(endpoint, target, deadline)
            raise _Moving(f"{endpoint} does not answer ({error!r})") from error
        if response.will_close:
            connection.close()
        else:
            self._connections[endpoint] = connection
        return response.status, {name.lower(): value for name, value in response.getheaders()}, body

    # -- the group ----------------------------------------------------------------------------------------------------

    def _store_facts(self, deadline: Deadline) -> Mapping[str, Any]:
        if self._facts is None:
            self._facts = json.loads(self._ask("", {}, None, False, deadline))
        return self._facts

    def _key_column(self, at: int) -> str:
        return str(self._facts["key"][at]["column"]) if self._facts else ""

    def _partition_of(self, key: Any, facts: Mapping[str, Any]) -> int | None:
        """Return the partition of a key of one text, which saves a redirect; None: the instance that is asked knows."""
        values = list(key.values()) if isinstance(key, Mapping) else key if isinstance(key, list) else [key]
        is_text = [each["type"] for each in facts["key"]] == ["string"] and len(values) == 1
        if not is_text or not isinstance(values[0], str):
            return None
        return partition_for_key(values[0].encode(errors="replace"), facts["partitions"])

    def _candidates(self, partition: int | None, allow_stale: bool, deadline: Deadline) -> Iterator[Endpoint]:
        """Yield the endpoints to ask: the owner of a task first, or one after another."""
        self._describe(deadline)
        task = (self._facts["subtopology"], partition) if self._facts and partition is not None else None
        owners = [member.endpoint for member in self._members if task is not None and task in member.active]
        if owners:
            yield owners[0]
        elif self._members:
            self._turn += 1
            yield self._members[self._turn % len(self._members)].endpoint
        if allow_stale:
            for member in self._members:
                if task in member.standby or task is None:
                    yield member.endpoint

    def _described(self, deadline: Deadline) -> StreamsGroupDescription:
        """Describe the group, a classic one when its rebalance is over: only then the description has endpoints."""
        backoff = Backoff()
        while True:
            found = self._admin.describe_streams_groups([self._group_id])[self._group_id]
            if found.group_type != "classic" or found.state == "Stable" or deadline.passed:
                return found
            backoff.pause(deadline)

    def _describe(self, deadline: Deadline) -> None:
        now_s = time.monotonic()
        if self._described_s is not None and now_s - self._described_s < DESCRIPTION_AGE_S:
            return
        try:
            found = self._described(deadline)
        except CannotConnect:
            if deadline.passed or not self._members:
                raise
            return  # the instances that were known may still answer
        self._described_s = now_s
        self._members = tuple(
            _Member(
                endpoint=Endpoint(*member.user_endpoint),
                active=task_ids(member.assignment.active),
                standby=task_ids(member.assignment.standby),
            )
            for member in found.members
            if member.user_endpoint is not None
        )
        if found.members and not self._members:
            raise BrokerError(
                "state-query-off",
                f"no instance of {self._group_id} answers queries",
                'Start them with config={"application.server": "127.0.0.1:0"}.',
            )
        for endpoint in set(self._connections) - {member.endpoint for member in self._members}:
            self._connections.pop(endpoint).close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """An instance that answers queries."""

    endpoint: Endpoint
    active: frozenset[tuple[str, int]]
    standby: frozenset[tuple[str, int]]


def _rows(pages: Any) -> StateRows:
    found = list(pages)
    return StateRows(
        rows=tuple(MappingProxyType(row) for page in found for row in page["rows"]),
        states=tuple(_state(page) for page in found),
        truncated=any(page["truncated"] for page in found),
    )


def _cut(pages: list[Mapping[str, Any]], limit: int, place: Any) -> StateRows:
    """Return the first rows of all tasks in one order."""
    merged = _rows(pages)
    # An answer that was cut has `limit` rows itself, so what it left out is behind the first `limit` of all.
    rows = sorted(merged.rows, key=place)
    return StateRows(rows=tuple(rows[:limit]), states=merged.states, truncated=merged.truncated or len(rows) > limit)


def _state(page: Mapping[str, Any]) -> TaskState:
    state = page["state"]
    return TaskState(
        partition=page["partition"],
        role=state["role"],
        lag=state["lag"],
        changelog_offset=state["changelog_offset"],
        input_offsets=state["input_offsets"],
    )


def _problem(body: bytes) -> Mapping[str, str]:
    try:
        found = json.loads(body)["error"]
        return {name: str(found[name]) for name in ("code", "message", "fix")}
    except (ValueError, KeyError, TypeError):
        return {"code": "unexpected", "message": "the answer is none of Headrace's", "fix": ""}


def _refusal(status: int, body: bytes) -> HeadraceError:
    found = _problem(body)
    kinds: Mapping[str, type[HeadraceError]] = {"bad-value": ConfigError, "authentication-failed": CannotConnect}
    kind = kinds.get(found["code"], StateError)
    return kind(found["code"], found["message"], found["fix"], status=status)


def _moment(value: datetime) -> str:
    if value.tzinfo is None:
        raise ConfigError("bad-value", f"Invalid time {value!r}: it has no time zone.", "Use datetime(.., tzinfo=UTC).")
    return value.isoformat()


def _json(key: Any) -> str:
    try:
        return json.dumps(key, default=_text_of, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "bad-value", f"Invalid key {key!r}: {error}.", "Give values of the grouping columns."
        ) from error


def _text_of(value: Any) -> Any:
    """Return the JSON form of a value that JSON does not have."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        import base64

        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no value of a column")
