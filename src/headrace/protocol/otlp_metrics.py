"""Decoder of OpenTelemetry metrics (OTLP `MetricsData` v1) as Kafka clients push them (KIP-714). Pure.

The messages are protobuf, and the project's `protobuf` extra could decode them. This decoder exists because the broker
runs on the base install, and because the bytes come from strangers: it reads a fixed depth, copies nothing but texts,
stops at a number of points, and has one error. Field numbers are those of `opentelemetry/proto/metrics/v1`, which is
stable; the tests compare every kind of point with the official classes (opentelemetry-proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["MetricPoint", "OtlpMalformed", "decode_points"]

_DOUBLE, _FIXED, _SIGNED = struct.Struct("<d"), struct.Struct("<Q"), struct.Struct("<q")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# opentelemetry.proto.metrics.v1.Metric: number of the field → kind of its points.
_GAUGE, _SUM = 5, 7
_KINDS = {_GAUGE: "gauge", _SUM: "sum", 9: "histogram", 10: "exponential_histogram", 11: "summary"}
# Attributes have another field number in each kind of point.
_ATTRIBUTES = {_GAUGE: 7, _SUM: 7, 9: 9, 10: 1, 11: 7}
_DELTA = 1
_VarintOrBytes = int | memoryview


class OtlpMalformed(ValueError):
    """The bytes are not OTLP metrics, or hold more points than allowed."""


class MetricPoint(NamedTuple):
    """One data point.

    Attributes:
        name: name of the metric. The count and the sum of a distribution are two points, `<name>.count` and
            `<name>.sum`.
        kind: gauge, sum, histogram, exponential_histogram or summary.
        is_delta: the value counts since `start_ns`, not since the client's start.
        labels: attributes of the client (its resource) and of the point.
        start_ns: start of the interval, in nanoseconds since 1970; 0: unknown.
        time_ns: time of the measurement, in nanoseconds since 1970.
        value: the measured value.
    """

    name: str
    kind: str
    is_delta: bool
    labels: Mapping[str, str]
    start_ns: int
    time_ns: int
    value: float | int


def decode_points(payload: bytes | memoryview, *, most_points: int) -> Iterator[MetricPoint]:
    """Yield the points of a `MetricsData` message.

    Raises:
        OtlpMalformed: the bytes cannot be decoded, or there are more than `most_points`.
    """
    count = 0
    for number, part in _fields(memoryview(payload)):
        if number == 1:
            for point in _resource_points(_message(part)):
                count += 1
                if count > most_points:
                    raise OtlpMalformed(f"more than {most_points} data points")
                yield point


def _resource_points(resource_metrics: memoryview) -> Iterator[MetricPoint]:
    labels: dict[str, str] = {}
    scopes: list[memoryview] = []
    # The resource may stand behind the metrics: protobuf does not order fields.
    for number, part in _fields(resource_metrics):
        if number == 1:
            for inner, attribute in _fields(_message(part)):
                if inner == 1:
                    labels.update([_attribute(_message(attribute))])
        elif number == 2:
            scopes.append(_message(part))
    for scope in scopes:
        for number, metric in _fields(scope):
            if number == 2:
                yield from _metric_points(_message(metric), labels)


def _metric_points(metric: memoryview, labels: Mapping[str, str]) -> Iterator[MetricPoint]:
    name, data = "", []
    for number, part in _fields(metric):
        if number == 1:
            name = _text(part)
        elif number in _KINDS:
            data.append((number, _message(part)))
    for kind, message in data:
        points, is_delta = [], False
        for number, part in _fields(message):
            if number == 1:
                points.append(_message(part))
            elif number == 2 and kind != 11:
                is_delta = part == _DELTA
        for point in points:
            yield from _values(name, kind, is_delta, point, labels)


def _values(
    name: str, kind: int, is_delta: bool, point: memoryview, resource_labels: Mapping[str, str]
) -> Iterator[MetricPoint]:
    labels = dict(resource_labels)
    start_ns = time_ns = 0
    values: list[tuple[str, float | int]] = []
    is_number = kind in (_GAUGE, _SUM)
    for number, part in _fields(point):
        if number == _ATTRIBUTES[kind]:
            labels.update([_attribute(_message(part))])
        elif number == 2:
            start_ns = _unpack(_FIXED, part)
        elif number == 3:
            time_ns = _unpack(_FIXED, part)
        elif number == 4:
            # A number's value as a double; the count of a distribution.
            values.append((name, _unpack(_DOUBLE, part)) if is_number else (f"{name}.count", _unpack(_FIXED, part)))
        elif number == 5 and not is_number:
            values.append((f"{name}.sum", _unpack(_DOUBLE, part)))
        elif number == 6 and is_number:
            values.append((name, _unpack(_SIGNED, part)))
    for each, value in values:
        yield MetricPoint(each, _KINDS[kind], is_delta, labels, start_ns, time_ns, value)


def _attribute(key_value: memoryview) -> tuple[str, str]:
    key = value = ""
    for number, part in _fields(key_value):
        if number == 1:
            key = _text(part)
        elif number == 2:
            for kind, inner in _fields(_message(part)):
                if kind == 1:
                    value = _text(inner)
                elif kind == 2:
                    value = "true" if inner else "false"
                elif kind == 3 and isinstance(inner, int):
                    value = str(inner - (1 << 64) if inner >> 63 else inner)
                elif kind == 4:
                    value = str(_unpack(_DOUBLE, inner))
                # Arrays, maps and bytes: no Kafka client sends them. Their key stays, with an empty value.
    return key, value


def _fields(message: memoryview) -> Iterator[tuple[int, _VarintOrBytes]]:
    """Yield (field number, varint or bytes) of one message, in the order of the bytes."""
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise OtlpMalformed(f"wire type {kind} is not used by OTLP")
        if size > end - position:
            raise OtlpMalformed("a field ends behind its message")
        yield tag >> 3, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    end = min(len(message), position + 10)
    while position < end:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise OtlpMalformed("a number does not end")


def _message(part: _VarintOrBytes) -> memoryview:
    if isinstance(part, int):
        raise OtlpMalformed("a message was expected, not a number")
    return part


def _text(part: _VarintOrBytes) -> str:
    try:
        return str(_message(part), "utf-8")
    except UnicodeDecodeError as error:
        raise OtlpMalformed("a text is not UTF-8") from error


def _unpack(kind: struct.Struct, part: _VarintOrBytes) -> int:
    data = _message(part)
    if len(data) != 8:
        raise OtlpMalformed("a fixed number does not have 8 bytes")
    return kind.unpack(data)[0]  # type: ignore[no-any-return]
