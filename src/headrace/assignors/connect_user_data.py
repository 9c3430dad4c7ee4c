"""Metadata and assignments of Kafka Connect's workers: the eager, compatible and sessioned protocols. Pure.

A group of Connect has the protocol type `connect`; its bytes are not wrapped in the consumer protocol. Version 0 is the
eager protocol, 1 the compatible (incremental) one of KIP-415, 2 the sessioned one of KIP-507 with the same layout.
"""

from __future__ import annotations

from headrace.assignors.consumer_protocol import MalformedUserData, Reader

__all__ = ["CONNECT_PROTOCOL_TYPE", "decode_connect_assignment", "decode_connect_metadata"]

CONNECT_PROTOCOL_TYPE = "connect"
LATEST_VERSION = 2
_CONNECTOR = -1
"""Task id that stands for the connector itself."""

Decoded = dict[str, object]
Connectors = dict[str, list[int | str]]


def decode_connect_metadata(data: bytes) -> Decoded | None:
    """Decode what a worker sends to the leader. Return None for other bytes."""
    try:
        return _metadata(Reader(data))
    except MalformedUserData:
        return None


def decode_connect_assignment(data: bytes) -> Decoded | None:
    """Decode what the leader sends to a worker. Return None for other bytes."""
    try:
        return _assignment(Reader(data))
    except MalformedUserData:
        return None


def _metadata(reader: Reader) -> Decoded:
    version = _version(reader)
    found: Decoded = {"version": version, "url": reader.nullable_string(), "config_offset": reader.int64()}
    if version >= 1:
        allocation = reader.nullable_bytes()
        # A worker without connectors sends null.
        found["allocation"] = None if allocation is None else _assignment(Reader(allocation))
    reader.check_end()
    return found


def _assignment(reader: Reader) -> Decoded:
    version = _version(reader)
    found: Decoded = {
        "version": version,
        "error": reader.int16(),
        "leader": reader.nullable_string(),
        "leader_url": reader.nullable_string(),
        "config_offset": reader.int64(),
        "assigned": _connectors(reader, nullable=version >= 1),
    }
    if version >= 1:
        found["revoked"] = _connectors(reader, nullable=True)
        found["scheduled_delay_ms"] = reader.int32()
    reader.check_end()
    return found


def _connectors(reader: Reader, *, nullable: bool) -> Connectors:
    if nullable and _peek_null(reader):
        return {}
    found: Connectors = {}
    for _ in range(reader.count(6)):
        name = reader.string()
        tasks = (reader.int32() for _ in range(reader.count(4)))
        found.setdefault(name, []).extend("connector" if task == _CONNECTOR else task for task in tasks)
    return found


def _peek_null(reader: Reader) -> bool:
    """Whether a nullable array is null; its length is consumed only then."""
    if reader.peek(4) != b"\xff\xff\xff\xff":
        return False
    reader.take(4)
    return True


def _version(reader: Reader) -> int:
    version = reader.int16()
    if not 0 <= version <= LATEST_VERSION:
        raise MalformedUserData(f"version {version} of Connect's protocol is unknown")
    return version
