"""The decoder of OTLP metrics beside the official classes, and with hostile bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

from headrace.protocol.otlp_metrics import MetricPoint, OtlpMalformed, decode_points

_TEXTS = st.text(max_size=8)
_TIMES = st.integers(0, 2**64 - 1)
_SCALARS: st.SearchStrategy[Any] = st.one_of(
    _TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
)
_LABELS = st.dictionaries(_TEXTS, _SCALARS, max_size=3)
_NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


def attributes(labels: dict[str, Any]) -> list[KeyValue]:
    fields = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
    return [KeyValue(key=key, value=AnyValue(**{fields[type(each)]: each})) for key, each in labels.items()]


def texts(labels: dict[str, Any]) -> dict[str, str]:
    return {key: str(each).lower() if isinstance(each, bool) else str(each) for key, each in labels.items()}


@st.composite
def messages(draw: st.DrawFn) -> tuple[pb.MetricsData, list[MetricPoint]]:
    """A message of the official classes, and the points that it holds."""
    data, expected = pb.MetricsData(), []
    for _ in range(draw(st.integers(0, 2))):
        of_client = draw(_LABELS)
        scope = pb.ScopeMetrics()
        for _ in range(draw(st.integers(0, 3))):
            metric = scope.metrics.add(name=draw(_TEXTS), description=draw(_TEXTS), unit="ms")
            kind = draw(st.sampled_from(["gauge", "sum", "histogram", "exponential_histogram", "summary"]))
            of_point, start, time = draw(_LABELS), draw(_TIMES), draw(_TIMES)
            is_delta = kind in ("sum", "histogram") and draw(st.booleans())
            common = (kind, is_delta, texts({**of_client, **of_point}), start, time)
            fields = {"start_time_unix_nano": start, "time_unix_nano": time, "attributes": attributes(of_point)}
            holder = getattr(metric, kind)
            if is_delta or kind == "sum":
                holder.aggregation_temporality = 1 if is_delta else 2
            if kind in ("gauge", "sum"):
                number = draw(_NUMBERS)
                holder.data_points.add(**{"as_int" if isinstance(number, int) else "as_double": number}, **fields)
                expected.append(MetricPoint(metric.name, *common, number))
            else:
                count, total = draw(st.integers(1, 2**63)), draw(st.floats(allow_nan=False).filter(bool))
                holder.data_points.add(count=count, sum=total, **fields)
                expected.append(MetricPoint(f"{metric.name}.count", *common, count))
                expected.append(MetricPoint(f"{metric.name}.sum", *common, total))
        data.resource_metrics.add(resource={"attributes": attributes(of_client)}, scope_metrics=[scope])
    return data, expected


@given(messages())
def test_points_are_those_of_the_official_classes(message: tuple[pb.MetricsData, list[MetricPoint]]) -> None:
    data, expected = message
    assert list(decode_points(data.SerializeToString(), most_points=100)) == expected


@given(messages(), st.data())
def test_damaged_bytes_are_decoded_or_refused(
    message: tuple[pb.MetricsData, list[MetricPoint]], chance: st.DataObject
) -> None:
    payload = bytearray(message[0].SerializeToString())
    for _ in range(chance.draw(st.integers(0, 3)) if payload else 0):
        payload[chance.draw(st.integers(0, len(payload) - 1))] = chance.draw(st.integers(0, 255))
    payload = payload[: chance.draw(st.integers(0, len(payload)))]
    with contextlib.suppress(OtlpMalformed):
        list(decode_points(bytes(payload), most_points=100))


@given(st.binary(max_size=64))
def test_any_bytes_are_decoded_or_refused(payload: bytes) -> None:
    with contextlib.suppress(OtlpMalformed):
        list(decode_points(payload, most_points=100))


def test_the_number_of_points_is_bounded() -> None:
    data = pb.MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    for number in range(11):
        metric.gauge.data_points.add(as_int=number)
    payload = data.SerializeToString()
    assert len(list(decode_points(payload, most_points=11))) == 11
    with pytest.raises(OtlpMalformed, match="more than 10"):
        list(decode_points(payload, most_points=10))
