"""Our families through OpenTelemetry's own SDK: names, kinds, attributes, and fresh values at each collection."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Metric, NumberDataPoint, Sum
from tests.harness.polling import wait_until

from headrace.errors import ConfigError
from headrace.metrics.opentelemetry_exporter import observe
from headrace.metrics.prometheus_text import Family, counter, gauge


class Measured:
    """Mutable: families that tell how often they were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def families(self) -> list[Family]:
        self.asked += 1
        mbean = "kafka.consumer:type=consumer-metrics"
        return [
            gauge(mbean, "lag", "Behind.", [(7, {"partition": "0"}), (9, {"partition": "1"})]),
            counter(mbean, "asked-total", "Asked.", [(self.asked, {"client_id": "a"})]),
            gauge(mbean, "lag", "Behind.", [(1, {"partition": "2"})]),
            gauge(mbean, "nothing-yet", "Later.", []),
        ]


def collected(reader: InMemoryMetricReader) -> dict[str, Metric]:
    data = reader.get_metrics_data()
    assert data is not None
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


def test_instruments_have_the_values_of_the_metric_families() -> None:
    reader, measured = InMemoryMetricReader(), Measured()
    provider = MeterProvider(metric_readers=[reader])
    observe(provider.get_meter("headrace"), measured.families)
    told = collected(reader)
    lag = told["kafka_consumer_consumer_metrics_lag"]
    assert isinstance(lag.data, Gauge)
    assert lag.description == "Behind."
    found = {(point.attributes or {})["partition"]: point.value for point in lag.data.data_points}
    assert found == {"0": 7.0, "1": 9.0, "2": 1.0}
    asked = told["kafka_consumer_consumer_metrics_asked_total"].data
    assert isinstance(asked, Sum)
    assert asked.is_monotonic
    provider.shutdown()


def test_each_collection_asks_once_and_anew() -> None:
    reader, measured = InMemoryMetricReader(), Measured()
    provider = MeterProvider(metric_readers=[reader])
    observe(provider.get_meter("headrace"), measured.families)
    for collection in (2, 3, 4):
        (point,) = collected(reader)["kafka_consumer_consumer_metrics_asked_total"].data.data_points
        assert isinstance(point, NumberDataPoint)
        assert point.value == measured.asked == collection  # the first was the registration
    provider.shutdown()


def test_a_family_that_appears_late_gets_an_instrument() -> None:
    families = [gauge("kafka.consumer:type=consumer-metrics", "lag", "Behind.", [(7, {})])]
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    observe(provider.get_meter("headrace"), lambda: families)
    assert set(collected(reader)) == {"kafka_consumer_consumer_metrics_lag"}
    families.append(counter("kafka.consumer:type=consumer-metrics", "late-total", "Late.", [(3, {})]))
    late = wait_until(
        lambda: collected(reader).get("kafka_consumer_consumer_metrics_late_total"), "no instrument of the late family"
    )
    assert isinstance(late.data, Sum)
    assert [point.value for point in late.data.data_points if isinstance(point, NumberDataPoint)] == [3]
    families[1] = counter("kafka.consumer:type=consumer-metrics", "late-total", "Late.", [(4, {})])
    (point,) = collected(reader)["kafka_consumer_consumer_metrics_late_total"].data.data_points
    assert isinstance(point, NumberDataPoint)
    assert point.value == 4
    provider.shutdown()


def test_without_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigError, match="OpenTelemetry need its API") as caught:
        observe(None, list)  # type: ignore[arg-type]
    assert "headrace[otel]" in caught.value.fix
