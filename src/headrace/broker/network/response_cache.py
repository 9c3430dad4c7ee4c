"""Answers that one connection may be given again: same bytes but for the correlation id, while nothing changed.

Nearly all requests of a broker with streams groups are heartbeats that change nothing. The bytes of such an answer are
kept together with the rule's permission to repeat it (`CoordinatorResult.repeatable`). Repeating it costs a look-up
and a comparison; nothing is decoded, run or encoded.

What stands in front of the rules stays in front: the answers belong to one connection, therefore to one principal and
one address, and the request's bytes hold API, version and client id, which is all that quotas and access rules go by.
Bytes that mean nothing to a rule, such as unknown tagged fields, make other keys of the same heartbeat: what is kept is
counted in bytes, of each connection and of all together. An answer that throttles is not kept.
`CacheGeneration.changed` takes all kept answers of the broker out of use.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.coordinator.result import Repeatable

__all__ = ["CacheGeneration", "ResponseCache"]

MOST_ANSWERS = 1024
LONGEST_BYTES = 4096
MOST_BYTES = 512 * 1024
# Of an answer, besides its bytes: the objects around them.
_OVERHEAD_BYTES = 400
_HEAD = struct.Struct(">ii")  # length of the frame; API key and version in one number
_LENGTH_BYTES = 4
_CORRELATION_START, _CORRELATION_END = 8, 12  # in a request with its length


class CacheGeneration:
    """Counts the changes of what is checked before a rule is asked: access rules, quotas, features. One per broker.

    `kept_bytes` is what all connections keep of answers, `most_bytes` what they may.
    """

    __slots__ = ("kept_bytes", "most_bytes", "version")

    def __init__(self, most_bytes: int = 64 * 1024 * 1024) -> None:
        self.version = 0
        self.kept_bytes = 0
        self.most_bytes = most_bytes

    def changed(self) -> None:
        self.version += 1


class _Answer:
    __slots__ = ("api", "door_version", "head", "repeatable", "tail")

    def __init__(self, api: int, door_version: int, head: bytes, tail: bytes, repeatable: Repeatable) -> None:
        self.api = api
        self.door_version = door_version
        self.head = head
        self.tail = tail
        self.repeatable = repeatable


class ResponseCache:
    """Mutable: what one connection was answered. Bounded: at most MOST_ANSWERS and MOST_BYTES, each at most
    LONGEST_BYTES.

    The keys are the requests' bytes behind the correlation id.
    """

    __slots__ = ("_bytes", "_door", "_known")

    def __init__(self, door: CacheGeneration) -> None:
        self._door = door
        self._known: dict[bytes, _Answer] = {}
        self._bytes = 0

    def clear(self) -> None:
        """Keep nothing any more."""
        self._known.clear()
        self._count(-self._bytes)

    def _count(self, change: int) -> None:
        self._bytes += change
        self._door.kept_bytes += change

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, frame: bytes, answer: bytes, repeatable: Repeatable) -> None:
        """`frame` without its length, `answer` with it."""
        if len(frame) > LONGEST_BYTES or len(answer) > LONGEST_BYTES:
            return
        key = frame[_CORRELATION_END - _LENGTH_BYTES :]
        size = len(key) + len(answer) + _OVERHEAD_BYTES
        if len(self._known) >= MOST_ANSWERS or self._bytes + size > MOST_BYTES:
            self.clear()
        if self._door.kept_bytes + size > self._door.most_bytes:
            return
        self._forget(key)
        self._count(size)
        self._known[key] = _Answer(
            int.from_bytes(frame[:4], "big", signed=True),
            self._door.version,
            answer[:_LENGTH_BYTES],
            answer[8:],
            repeatable,
        )

    def _forget(self, key: bytes) -> None:
        answer = self._known.pop(key, None)
        if answer is not None:
            self._count(-(len(key) + len(answer.head) + len(answer.tail) + _LENGTH_BYTES + _OVERHEAD_BYTES))

    def repeat(self, data: bytes, now_ms: int) -> tuple[list[bytes], int]:
        """Answers to the whole frames at the start of `data`, up to the first that the rules have to see.

        Returns the pieces of the answers, three for each frame, and where the first unanswered byte is.
        """
        known, door_version = self._known, self._door.version
        pieces: list[bytes] = []
        position, size = 0, len(data)
        while size - position > _CORRELATION_END:
            length, api = _HEAD.unpack_from(data, position)
            end = position + _LENGTH_BYTES + length
            if end > size or length > LONGEST_BYTES:
                break
            answer = known.get(data[position + _CORRELATION_END : end])
            if answer is None or answer.api != api or answer.door_version != door_version:
                break
            if not answer.repeatable.renew(now_ms):
                self._forget(data[position + _CORRELATION_END : end])
                break
            pieces += (answer.head, data[position + _CORRELATION_START : position + _CORRELATION_END], answer.tail)
            position = end
        return pieces, position
