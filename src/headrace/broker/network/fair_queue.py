"""Turns for expensive requests: one at a time, and no client gets more of the broker's time than another.

A request of a few kilobytes can name thousands of items and cost 100 ms of CPU. Twenty connections that send such
requests together would hold the event loop for two seconds between two looks at the other sockets. So they queue here,
while small requests are answered in the loop's next turn. The order is start-time fair queueing (Goyal et al., 1996)
with the time used as the cost: of the clients that wait, the one that has used the least time is next. A client is a
principal, or an address where clients do not log in, so more connections do not make a larger share.

A request is read, checked and answered in one turn of the event loop. Its price is its items (names, partitions,
settings), so those are bounded: `headrace.request.max.items` in units of the cheapest ones, some 7 µs each on a small
machine. Where an item costs more, a request may have fewer of them.

What is pure of a request, decoding it and encoding its answer, runs in one thread beside the loop: the interpreter
then switches between the two every 5 ms. Handlers change state and stay on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request_codec import OversizedRequest, RequestHeader, decode_request, peek_api_key

__all__ = ["LARGE_ANSWER_BYTES", "FairQueue", "decode_cheap_request", "most_items"]

# An item has at least one byte. 4,096 items cost 20 to 30 ms; a request of a usual client is smaller, or so large that
# the 0.1 ms of a turn in this queue do not count.
SMALL_FRAME_BYTES = 4096
# Batches make a Produce request large and not expensive: its partitions count.
PRODUCE_ITEMS = 200
# Small requests may have large answers (Metadata of all topics): 32 KiB of items cost 5 to 10 ms. A connection whose
# last answer was larger takes a turn for its next request.
LARGE_ANSWER_BYTES = 32 << 10


# An item's price in units of the cheapest. Each item of Produce is a batch that is checked and written. DescribeConfigs
# and DeleteAcls bound their work themselves.
_WEIGHTS: Mapping[int, int] = MappingProxyType(
    {
        ApiKey.PRODUCE: 3,
        ApiKey.DESCRIBE_GROUPS: 2,
        ApiKey.CONSUMER_GROUP_DESCRIBE: 2,
        ApiKey.STREAMS_GROUP_DESCRIBE: 2,
        ApiKey.DESCRIBE_TRANSACTIONS: 2,
        ApiKey.DESCRIBE_CONFIGS: 2,
        ApiKey.ALTER_CONFIGS: 2,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 2,
        ApiKey.DELETE_ACLS: 12,
    }
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def most_items(api_key: int | None, limit: int) -> int:
    """Return the largest number of items in a request of this API for a `headrace.request.max.items` of `limit`."""
    return limit // _WEIGHTS.get(api_key, 1) if api_key is not None else limit


def decode_cheap_request(frame: bytes, most_items: int) -> tuple[RequestHeader, object] | None:
    """Decode a request unless it may hold the event loop for long.

    A large Produce request is decoded with `PRODUCE_ITEMS` as the limit, so that one walk over its arrays decides both
    questions: 0.1 ms of a usual batch's 1.3 ms went into a walk of its own.

    Returns:
        The header and the request, or None for one that takes a turn in the queue.

    Raises:
        As `decode_request`.
    """
    if len(frame) <= SMALL_FRAME_BYTES:
        return decode_request(frame, most_items)
    # Its size is that of its items, which nothing but decoding tells apart from long names.
    if peek_api_key(frame) != ApiKey.PRODUCE:
        return None
    try:
        return decode_request(frame, min(most_items, PRODUCE_ITEMS))
    except OversizedRequest:
        if most_items <= PRODUCE_ITEMS:
            raise
        return None


class _Client:
    """Mutable: `used_s` is the client's virtual time, comparable with the queue's."""

    __slots__ = ("used_s", "waiting")

    def __init__(self, used_s: float) -> None:
        self.used_s = used_s
        self.waiting: deque[asyncio.Future[None]] = deque()


class FairQueue:
    """Mutable: who waits for a turn, and what those that had one have used. Belongs to one event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._clients: dict[str, _Client] = {}
        self._virtual_s = 0.0
        self._busy = False
        self._thread: ThreadPoolExecutor | None = None

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until it is this client's turn; the time until the end of the block is its cost."""
        await self._begin(client)
        # The clock runs only in the turn: waiting costs a client nothing.
        began_s = self._now_s()
        try:
            yield
        finally:
            self._end(client, self._now_s() - began_s)

    async def run_in_thread(
        self, work: Callable[_Arguments, _Result], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> _Result:
        """Run a pure function in the worker thread, and return its result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-codec")
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments, **named))

    def close(self) -> None:
        """End the thread when it has nothing to do."""
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _begin(self, name: str) -> None:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(self._virtual_s)
        # Without competition a turn costs nothing but this look.
        if not self._busy:
            self._busy = True
            return
        granted = asyncio.get_running_loop().create_future()
        client.waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # granted and cancelled in the same turn of the loop: pass it on
                self._grant_next()
            raise

    def _end(self, name: str, used_s: float) -> None:
        client = self._clients.setdefault(name, _Client(self._virtual_s))
        # The cost is the time used, not the number of requests: a request of 100 ms counts as a hundred of 1 ms.
        client.used_s += used_s
        self._grant_next()

    def _grant_next(self) -> None:
        """The next turn is that of the client that has used the least. Clients that wait for nothing and have used no
        more than it are forgotten: they would begin where it is."""
        # 1. The client with the smallest virtual time is next. Linear in the clients that wait, which are few: those of
        #    expensive requests only. A heap would have to be repaired at every cost that is added.
        chosen: _Client | None = None
        for client in self._clients.values():
            while client.waiting and client.waiting[0].done():  # cancelled
                client.waiting.popleft()
            if client.waiting and (chosen is None or client.used_s < chosen.used_s):
                chosen = client
        # 2. No client waits: all start from zero again, so an old debt is not carried into the next congestion.
        if chosen is None:
            self._busy = False
            self._clients.clear()
            self._virtual_s = 0.0
            return
        # 3. The queue's virtual time never goes back. A client that was idle begins here, and cannot save up a claim
        #    (start-time fair queueing).
        self._virtual_s = max(self._virtual_s, chosen.used_s)
        chosen.waiting.popleft().set_result(None)
        # 4. Forgotten clients would begin at the virtual time, which is where they are: the table stays as small as the
        #    competition.
        self._clients = {
            name: client
            for name, client in self._clients.items()
            if client is chosen or client.waiting or client.used_s > self._virtual_s
        }
