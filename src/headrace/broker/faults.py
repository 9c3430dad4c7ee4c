"""Faults on demand: chosen requests fail, wait, lose their connection or their answer, or get another answer.

`EmbeddedBroker.faults` is how tests reach it. The broker asks `arrived` about each request it decoded; without a fault
in place that is one counter. Only the requests that a fault takes leave the usual path, and they block their own
connection only, as a slow request does. Faults may be set and removed from any thread; delays are real time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import threading
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Self, TypeGuard, TypeVar
from uuid import UUID

from kio.schema.types import GroupId, TopicName

from headrace.broker.requests.error_responses import error_answer
from headrace.checked_api import checked_api
from headrace.errors import ConfigError
from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.request_codec import RequestHeader
from headrace.suggestions import nearest

__all__ = ["ConnectionLost", "Fault", "Faults", "answer_with", "client_id_in", "named_in", "topics_in"]


Kind = Literal["fail", "delay", "disconnect", "drop", "rewrite"]
Rewrite = Callable[[Any], Any]
PATIENCE_SECONDS = 20.0
_CLIENT_ID_LENGTH = struct.Struct(">h")
_CLIENT_ID_START = 14  # behind the frame's length, API key, version, correlation id, and its own length


class ConnectionLost(Exception):
    """The fault wants the connection to end without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Which requests a fault takes: the `after`-th matching one is the first, and `times` of them at most."""

    api: ApiKey
    times: int | None
    after: int
    client_id: str | None
    topic: str | None
    group: str | None


class Fault:
    """One fault in place, as `fail`, `delay` and the others return it. In a `with` block it ends with the block."""

    def __init__(self, owner: Faults, kind: Kind, choice: _Choice) -> None:
        self._owner = owner
        self._choice = choice
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._passed = 0
        self._removed = False
        self.kind = kind
        self.code = ErrorCode.none
        self.seconds = 0.0
        self.handled = False
        self.change: Rewrite | None = None
        self.hits = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        chosen = (
            f", {name}={value!r}"
            for name in ("times", "after", "client_id", "topic", "group")
            if (value := getattr(self._choice, name))
        )
        return f"<{self.kind} {self._choice.api.kafka_name}{''.join(chosen)}: {self.hits} hits>"

    def remove(self) -> None:
        """Remove the fault.

        It takes no further request; what it delays goes on at once, a connection whose answer it dropped ends.
        """
        self._owner._remove(self)

    def wait(self, hits: int = 1, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Return when the fault has taken so many requests. Raises TimeoutError."""
        self._owner._wait(self, hits, timeout_seconds)

    # --- the broker's side, under the owner's lock or on the loop ---

    def takes(self, header: RequestHeader, topics: Callable[[], frozenset[str]], groups: frozenset[str]) -> bool:
        choice = self._choice
        if header.api_key != choice.api or (choice.times is not None and self.hits >= choice.times):
            return False
        if choice.client_id is not None and header.client_id != choice.client_id:
            return False
        if choice.group is not None and choice.group not in groups:
            return False
        if choice.topic is not None and choice.topic not in topics():
            return False
        # Only matching requests count for `after`; the topic, which takes a walk through the request, is looked at
        # last.
        self._passed += 1
        if self._passed <= choice.after:
            return False
        self.hits += 1
        return True

    async def wait_until_released(self, seconds: float | None) -> None:
        """End after so long, or when the fault is removed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._removed:
                return
            self._waiting[future] = loop
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(future, seconds)
        finally:
            self._waiting.pop(future, None)

    def release(self, *, removed: bool = True) -> None:
        """Release the requests that wait, from any thread."""
        with self._lock:
            self._removed = self._removed or removed
            waiting = tuple(self._waiting.items())
        for future, loop in waiting:
            with contextlib.suppress(RuntimeError):  # that loop has ended, and what waited on it
                loop.call_soon_threadsafe(_settle, future)


@checked_api(internal=("intercept", "count_requests"))
class Faults:
    """All faults of one broker, and what it was asked. Mutable; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # One lock for faults and counters: `wait` must not miss a hit between its test and its wait.
        self._changed = threading.Condition(self._lock)
        # A tuple that is replaced as a whole: the broker's loop reads it for every request without taking the lock.
        self._faults: tuple[Fault, ...] = ()
        self.active = bool(self._faults)
        self._seen: dict[tuple[int, str], int] = {}

    def fail(
        self,
        api: str | ApiKey,
        code: str | int | ErrorCode,
        *,
        times: int | None = None,
        after: int = 0,
        client_id: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> Fault:
        """Answer requests with an error, without handling them.

        `code` is Kafka's name or number; it stands for every item of the request.

        Of the requests that match, the first `after` pass; `times` are taken, by default all until the fault is
        removed. `topic`, `group`: only requests that name it. Raises ConfigError `bad-value` for unknown names.
        """
        return self._add("fail", api, times, after, client_id, topic, group, code=_code(code))

    def delay(
        self,
        api: str | ApiKey,
        seconds: float,
        *,
        times: int | None = None,
        after: int = 0,
        client_id: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> Fault:
        """Delay requests before they are handled, for a time or until the fault is removed; see `fail`."""
        return self._add("delay", api, times, after, client_id, topic, group, seconds=seconds)

    def disconnect(
        self,
        api: str | ApiKey,
        *,
        handled: bool = False,
        times: int | None = None,
        after: int = 0,
        client_id: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> Fault:
        """Close the connection instead of answering. `handled`: the request took effect before that, which its client
        cannot know. Which requests: see `fail`."""
        return self._add("disconnect", api, times, after, client_id, topic, group, handled=handled)

    def drop(
        self,
        api: str | ApiKey,
        *,
        times: int | None = None,
        after: int = 0,
        client_id: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> Fault:
        """Handle requests and drop the response: the connection stays open and says nothing any more, until
        the client's patience ends or the fault is removed. Which requests: see `fail`."""
        return self._add("drop", api, times, after, client_id, topic, group, handled=True)

    def rewrite(
        self,
        api: str | ApiKey,
        change: Rewrite,
        *,
        times: int | None = None,
        after: int = 0,
        client_id: str | None = None,
        topic: str | None = None,
        group: str | None = None,
    ) -> Fault:
        """Handle requests, and send the response that `change` returns.

        `change` gets the message of `headrace.protocol.messages`, whatever version the client speaks, and returns one:
        `dataclasses.replace` is the way. It runs on the broker's thread. Which requests: see `fail`.
        """
        return self._add("rewrite", api, times, after, client_id, topic, group, change=change)

    def seen(self, api: str | ApiKey, *, client_id: str | None = None) -> int:
        """Return the number of requests of this API since the start or `clear`, those taken by faults included."""
        key = _api(api)
        with self._lock:
            return sum(
                count
                for (api_key, client), count in self._seen.items()
                if api_key == key and client_id in (None, client)
            )

    def clear(self) -> None:
        """Remove all faults and forget what was seen."""
        with self._lock:
            faults, self._faults = self._faults, ()
            self.active = bool(self._faults)
            self._seen.clear()
        for fault in faults:
            fault.release()

    def release(self) -> None:
        """Release all delayed requests now, as when the broker stops. The faults stay."""
        for fault in self._faults:
            fault.release(removed=False)

    # --- the broker's side ---

    def intercept(
        self, header: RequestHeader, request: object, topics: Callable[[object], frozenset[str]]
    ) -> tuple[Fault, ...]:
        """Count a request, and return the faults that take it, delays first. `topics` finds the topics' names in it."""
        self.count_requests(header.api_key, header.client_id or "", 1)
        if not self._faults:
            return ()
        with self._changed:
            taken = tuple(self._taken(header, request, topics))
            if taken:
                self._changed.notify_all()
        return taken

    def count_requests(self, api_key: int, client_id: str, count: int) -> None:
        """Count requests that were answered without being decoded."""
        key = api_key, client_id
        with self._lock:
            self._seen[key] = self._seen.get(key, 0) + count

    def _taken(
        self, header: RequestHeader, request: object, topics: Callable[[object], frozenset[str]]
    ) -> Iterator[Fault]:
        groups = named_in(request, GroupId)
        ended = False
        for fault in self._faults:
            ends = fault.kind not in ("delay", "rewrite")
            if ended and ends:
                continue  # a request fails once; the next fault of the kind waits for the next request
            if fault.takes(header, lambda: topics(request), groups):
                ended = ended or ends
                yield fault

    def _add(
        self,
        kind: Kind,
        api: str | ApiKey,
        times: int | None,
        after: int,
        client_id: str | None,
        topic: str | None,
        group: str | None,
        **more: object,
    ) -> Fault:
        choice = _Choice(api=_api(api), times=times, after=after, client_id=client_id, topic=topic, group=group)
        fault = Fault(self, kind, choice)
        for name, value in more.items():
            setattr(fault, name, value)
        with self._lock:
            self._faults += (fault,)
            self.active = bool(self._faults)
        return fault

    def _remove(self, fault: Fault) -> None:
        with self._lock:
            self._faults = tuple(each for each in self._faults if each is not fault)
            self.active = bool(self._faults)
        fault.release()

    def _wait(self, fault: Fault, hits: int, timeout_seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: fault.hits >= hits, timeout_seconds):
                raise TimeoutError(f"{fault!r} did not come to {hits} within {timeout_seconds} s.")


async def answer_with(
    faults: tuple[Fault, ...], header: RequestHeader, request: object, handle: Callable[[], object]
) -> object:
    """Return the response that replaces the plain one. `handle` lets the request take effect.

    Raises ConnectionLost where the client shall get nothing.
    """
    # 1. Delays first: what else happens to the request happens after them.
    for fault in faults:
        if fault.kind == "delay":
            await fault.wait_until_released(fault.seconds)
    end = next((fault for fault in faults if fault.kind not in ("delay", "rewrite")), None)
    # 2. Failing means that the request takes no effect.
    if end is not None and end.kind == "fail":
        # A producer with acks=0 gets no response; Kafka closes its connection so that it learns of the failure at all.
        if getattr(request, "acks", -1) == 0:
            raise ConnectionLost
        return error_answer(ApiKey(header.api_key), request, end.code)
    # 3. A connection lost before the request took effect.
    if end is not None and not end.handled:
        raise ConnectionLost
    # 4. From here on the request takes effect; only its response may still be lost or changed.
    response = handle()
    if isinstance(response, Awaitable):
        response = await response
    if end is not None:
        if end.kind == "drop":
            await end.wait_until_released(None)
        raise ConnectionLost
    for fault in faults:
        if fault.change is not None and response is not None:
            response = fault.change(response)
    return response


def topics_in(request: object, name_of: Callable[[UUID], str | None]) -> frozenset[str]:
    """Return the names of the topics that a request is about; `name_of` knows the topics' ids."""
    by_id = (name_of(topic_id) for topic_id in named_in(request, UUID, field="topic_id"))
    return named_in(request, TopicName) | frozenset(name for name in by_id if name is not None)


def client_id_in(frames: bytes) -> str:
    """Return the client id of the first of these whole requests, length included; "" where it has none."""
    (length,) = _CLIENT_ID_LENGTH.unpack_from(frames, _CLIENT_ID_START - 2)
    return frames[_CLIENT_ID_START : _CLIENT_ID_START + max(0, length)].decode(errors="replace")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _api(given: str | ApiKey) -> ApiKey:
    """Kafka's name of an API (`Produce`), or its key. Raises ConfigError `bad-value`."""
    known = {key.kafka_name: key for key in SUPPORTED}
    if isinstance(given, ApiKey):
        return given
    for name, key in known.items():
        if name.lower() == given.lower().replace("_", ""):
            return key
    raise _unknown("an API", given, known)


def _code(given: str | int | ErrorCode) -> ErrorCode:
    """Kafka's name (`NOT_COORDINATOR`) or number. Raises ConfigError `bad-value`."""
    if isinstance(given, ErrorCode):
        return given
    try:
        return ErrorCode(given) if isinstance(given, int) else ErrorCode[given.lower()]
    except (KeyError, ValueError):
        raise _unknown("an error code", str(given), {kafka_name(each): each for each in ErrorCode}) from None


def _unknown(what: str, given: str, known: Mapping[str, object]) -> ConfigError:
    near = nearest(given, known) or nearest(given.upper(), known)
    fix = f"Did you mean {near}?" if near else f"Known are: {', '.join(sorted(known))}."
    return ConfigError("bad-value", f"{given} is not {what} of Kafka's protocol.", fix, given=given, nearest=near or "")


_Value = TypeVar("_Value")
_Getter = Callable[[object], Iterator[Any]]


def named_in(request: object, kind: type[_Value], *, field: str | None = None) -> frozenset[_Value]:
    """Return all values declared as `kind` (TopicName, GroupId, …) in a message; `field`: only of that name."""
    return frozenset(value for value in _of(type(request), kind, field)(request) if value)


def _of(schema: type, kind: object, only: str | None) -> _Getter:
    return _getter(schema, kind, only)


@cache
def _getter(schema: type, kind: object, only: str | None) -> _Getter:
    steps: list[tuple[str, bool, _Getter | None]] = []
    for name, hint in typing.get_type_hints(schema).items():
        inner, many = _inner(hint)
        if inner is kind and only in (None, name):
            steps.append((name, many, None))
        elif _is_message(inner):
            steps.append((name, many, _getter(inner, kind, only)))

    def values(message: object) -> Iterator[object]:
        for name, many, getter in steps:
            found = getattr(message, name)
            for each in (found or ()) if many else (found,):
                if getter is None:
                    yield each
                elif each is not None:
                    yield from getter(each)

    return values


def _is_message(kind: object) -> TypeGuard[type]:
    return dataclasses.is_dataclass(kind)


def _inner(hint: object) -> tuple[object, bool]:
    """Return the type inside `| None` and `tuple[…, ...]`, and whether there are several."""
    arguments = typing.get_args(hint)
    if arguments and typing.get_origin(hint) is tuple:
        return arguments[0], True
    if arguments and type(None) in arguments:
        return _inner(next(each for each in arguments if each is not type(None)))
    return hint, False
