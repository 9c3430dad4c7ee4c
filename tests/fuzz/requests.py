"""Requests a stranger might send, from a seed: of every API and version, sensible at first, then bent.

What makes them reach deep: the words of the house. Values of a field are mostly taken from a pool of that name: topics
and groups that exist, and what earlier answers said (producer ids, member ids, epochs, topic ids, session ids).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import random
import struct
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from tests.fuzz.record_samples import hostile_batches

from headrace.protocol.api_keys import SUPPORTED, ApiKey
from headrace.protocol.version_conversion import has_flexible_header, message_class

__all__ = ["Frame", "Pools", "RequestFuzzer"]

_FIXED_HEADER = struct.Struct(">hhih")
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63, "uint16": 16, "uint32": 32}
_EDGES = {
    "int8": (-128, -1, 0, 1, 2, 127),
    "int16": (-(2**15), -2, -1, 0, 1, 2, 2**15 - 1),
    "int32": (-(2**31), -2, -1, 0, 1, 2, 3, 7, 1000, 2**31 - 1),
    "int64": (-(2**63), -6, -5, -4, -3, -2, -1, 0, 1, 2, 100, 2**31, 2**63 - 1),
    "uint16": (0, 1, 9092, 2**16 - 1),
    "uint32": (0, 1, 2**32 - 1),
}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEXTS = (
    "",
    "x",
    "none",
    "a" * 300,
    "ä€😀",
    "__consumer_offsets",
    "__transaction_state",
    "../etc",
    "a\x00b",
    "%s",
    "-1",
)
_TOPICS = tuple(f"fuzz-{number}" for number in range(4))
_GROUPS = tuple(f"group-{number}" for number in range(5))

# Where the first values of a field come from; answers add to the pools of the same names.
_WORDS: Mapping[str, tuple[Any, ...]] = {
    "name": _TOPICS,
    "topic": _TOPICS,
    "topic_name": _TOPICS,
    "topics": _TOPICS,
    "topic_names": _TOPICS,
    "source_topics": _TOPICS,
    "repartition_sink_topics": _TOPICS,
    "resource_name": (*_TOPICS, *_GROUPS, "1", ""),
    "group_id": _GROUPS,
    "group": _GROUPS,
    "groups": _GROUPS,
    "group_ids": _GROUPS,
    "groups_names": _GROUPS,
    "key": (*_GROUPS, "txn-1"),
    "coordinator_keys": (*_GROUPS, "txn-1", "txn-2"),
    "transactional_id": ("txn-1", "txn-2", None),
    "transactional_ids": ("txn-1", "txn-2"),
    "member_id": ("", "member-1", "member-2"),
    "instance_id": (None, "instance-1"),
    "process_id": ("process-1", "process-2"),
    "subtopology_id": ("0", "1"),
    "protocol_type": ("consumer", "connect", ""),
    "mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "principal": ("User:a", "User:*"),
    "host": ("*", "127.0.0.1"),
    "partition": (0, 1, 2),
    "partitions": (0, 1, 2),
    "partition_index": (0, 1, 2),
    "partition_indexes": (0, 1, 2),
    "index": (0, 1, 2),
    "member_epoch": (-2, -1, 0, 1, 2),
    "producer_id": (-1, 1000),
    "producer_epoch": (-1, 0, 1),
    "acks": (-1, 0, 1),
    "isolation_level": (0, 1),
    "session_id": (0,),
    "session_epoch": (-1, 0, 1),
    "resource_type": (1, 2, 3, 4, 8, 16, 32),
    "num_partitions": (-1, 1, 2),
    "count": (1, 2, 3),
    "replication_factor": (-1, 1),
    "min_bytes": (0, 1),
    "max_bytes": (0, 100, 1_000_000),
    "partition_max_bytes": (0, 100, 1_000_000),
    "config_operation": (0, 1, 2, 3),
}
# Waiting is no finding: nothing may take longer than this.
_LONGEST_WAIT = dt.timedelta(milliseconds=5)
_WAITS = frozenset({"max_wait", "max_wait_ms", "timeout", "timeout_ms"})
_POOL_LIMIT = 40
# What makes the house empty comes seldom; what fills it comes often.
_WEIGHTS = {
    ApiKey.PRODUCE: 6.0,
    ApiKey.FETCH: 3.0,
    ApiKey.CREATE_TOPICS: 0.5,
    ApiKey.DELETE_TOPICS: 0.05,
    ApiKey.DELETE_RECORDS: 0.2,
    ApiKey.DELETE_GROUPS: 0.2,
    ApiKey.UPDATE_FEATURES: 0.05,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One request with its length in front. `bent`: bytes were changed after it was written."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    data: bytes
    bent: bool


class Pools:
    """Mutable: values by the name of the field that had them."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {name: list(words) for name, words in _WORDS.items()}
        self._fixed = {name: len(words) for name, words in _WORDS.items()}

    def pick(self, name: str, chance: random.Random) -> Any:
        values = self._values.get(name)
        return chance.choice(values) if values else None

    def learn(self, answer: Any) -> None:
        """Takes up ids and epochs that an answer names."""
        if isinstance(answer, tuple):
            for item in answer[:20]:
                self.learn(item)
        elif dataclasses.is_dataclass(answer):
            for field in dataclasses.fields(answer):
                value = getattr(answer, field.name)
                if isinstance(value, tuple) or dataclasses.is_dataclass(value):
                    self.learn(value)
                elif field.name.endswith(("_id", "_epoch")) and value is not None:
                    self._note(field.name, value)

    def _note(self, name: str, value: Any) -> None:
        values = self._values.setdefault(name, [])
        if value in values:
            return
        values.append(value)
        if len(values) > _POOL_LIMIT:
            del values[self._fixed.get(name, 0)]


class RequestFuzzer:
    """Frames from a seed. Mutable: remembers what `learn` was told."""

    def __init__(self, seed: int, apis: typing.Iterable[ApiKey]) -> None:
        self._chance = random.Random(seed)
        self._apis = tuple(apis)
        self._weights = [_WEIGHTS.get(api, 1.0) for api in self._apis]
        self._pools = Pools()
        self._correlation_id = 0

    def learn(self, answer: object) -> None:
        self._pools.learn(answer)

    def frame(self) -> Frame:
        chance = self._chance
        (api_key,) = chance.choices(self._apis, self._weights)
        api_version = chance.randint(SUPPORTED[api_key].lowest, SUPPORTED[api_key].highest)
        self._correlation_id += 1
        body = self._body(api_key, api_version)
        bent = chance.random() < 0.4
        if bent:
            body = _bend(body, chance)
        return Frame(
            api_key=api_key,
            api_version=api_version,
            correlation_id=self._correlation_id,
            data=struct.pack(">i", len(body)) + body,
            bent=bent,
        )

    def _body(self, api_key: ApiKey, api_version: int) -> bytes:
        schema = message_class(api_key, api_version, "request")
        buffer = io.BytesIO()
        client_id = b"fuzz-client"
        buffer.write(_FIXED_HEADER.pack(api_key, api_version, self._correlation_id, len(client_id)) + client_id)
        if has_flexible_header(schema):
            buffer.write(b"\x00")
        _writer(schema)(buffer, self._message(schema))
        return buffer.getvalue()

    def _message(self, schema: Any) -> Any:
        hints = _hints(schema)
        values = {field.name: self._value(hints[field.name], field) for field in dataclasses.fields(schema)}
        return schema(**values)

    def _value(self, hint: Any, field: dataclasses.Field[Any]) -> Any:
        chance = self._chance
        nullable = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        if nullable:
            if chance.random() < 0.15:
                return None
            hint = next(argument for argument in typing.get_args(hint) if argument is not type(None))
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            most = 40 if chance.random() < 0.02 else 2
            return tuple(self._value(item, field) for _ in range(chance.randint(0 if most > 2 else 1, most)))
        if dataclasses.is_dataclass(hint):
            return self._message(hint)
        return self._primitive(field, nullable=nullable)

    def _primitive(self, field: dataclasses.Field[Any], *, nullable: bool) -> Any:
        chance, kafka_type = self._chance, field.metadata["kafka_type"]
        if field.name in _WAITS and kafka_type.startswith("timedelta"):
            return _LONGEST_WAIT
        if chance.random() < 0.8:
            known = self._pools.pick(field.name, chance)
            if known is not None and _fits(known, kafka_type):
                return known
        return _random_value(kafka_type, chance)


@cache
def _writer(schema: Any) -> Callable[[io.BytesIO, Any], None]:
    return entity_writer(schema)


@cache
def _hints(schema: Any) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _fits(value: Any, kafka_type: str) -> bool:
    if kafka_type in _BITS:
        bits = _BITS[kafka_type]
        lowest = 0 if kafka_type.startswith("u") else -(2**bits)
        return isinstance(value, int) and not isinstance(value, ErrorCode) and lowest <= value < 2**bits
    return {"string": str, "uuid": uuid.UUID}.get(kafka_type, type(None)) is type(value) or (
        kafka_type == "string" and isinstance(value, str)
    )


def _random_value(kafka_type: str, chance: random.Random) -> Any:
    if kafka_type in _BITS:
        return chance.choice(_EDGES[kafka_type]) if chance.random() < 0.7 else chance.getrandbits(_BITS[kafka_type])
    match kafka_type:
        case "string":
            return chance.choice(_TEXTS) if chance.random() < 0.7 else "".join(chance.choices("abc.-_", k=8))
        case "records":
            return hostile_batches(chance)
        case "bytes":
            return chance.choice((b"", b"\x00", chance.randbytes(30), b"\x00a\x00b"))
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return chance.choice((0.0, -1.0, 1e300, float("nan"), float("inf"), 1000.0))
        case "uuid":
            return uuid.UUID(int=chance.getrandbits(128) | 1)
        case "error_code":
            return chance.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(milliseconds=chance.choice((0, 1, 100, 2**31 - 1)))
        case "datetime_i64":
            return _EPOCH + dt.timedelta(milliseconds=chance.choice((0, 1, chance.getrandbits(41))))
        case other:
            raise AssertionError(f"no value for {other}")


def _bend(body: bytes, chance: random.Random) -> bytes:
    """Bytes that are nearly a request: bits, numbers, cuts, repeats and inserts."""
    bent = bytearray(body)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        # The first bytes are key and version: another API's layout is a case of its own, but a rare one.
        first = 0 if chance.random() < 0.05 else min(8, len(bent) - 1)
        at = chance.randrange(first, len(bent)) if len(bent) > first else 0
        match chance.randrange(7):
            case 0:
                bent[at] ^= 1 << chance.randrange(8)
            case 1:
                bent[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                number = chance.choice((-1, -2, 0, 2**31 - 1, -(2**31), 2**30))
                bent[at : at + 4] = struct.pack(">i", number)
            case 3:
                bent[at : at + 5] = b"\xff\xff\xff\xff" + bytes([chance.choice((0x07, 0x0F, 0x7F, 0xFF))])
            case 4:
                del bent[max(at, 1) :]
            case 5:
                bent[at:at] = bent[at : at + chance.randint(1, 30)]
            case 6:
                bent[at:at] = chance.randbytes(chance.randint(1, 20))
    return bytes(bent)
