"""Metric families as observable instruments of an OpenTelemetry meter, under the names of the Prometheus page.

Needs the extra `otel`, which is the API alone; the program chooses the SDK and the exporter behind the meter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.metrics.prometheus_text import Family, Sample

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["observe"]


def observe(meter: Meter, families: Callable[[], Iterable[Family]]) -> None:
    """Register one observable instrument per metric name with a meter.

    Args:
        meter: Meter of an OpenTelemetry SDK.
        families: Called once per collection; returns the current families.

    Raises:
        ConfigError: extra-missing: the OpenTelemetry API is not installed.
    """
    try:
        import opentelemetry.metrics  # noqa: F401 - is it installed?
    except ImportError as error:
        raise ConfigError(
            "extra-missing",
            "Instruments of OpenTelemetry need its API, which is not installed.",
            "pip install 'headrace[otel]', or opentelemetry-api alone.",
        ) from error
    collection = _Collection(families)
    for name, family in collection.by_name.items():
        # An observable counter reports totals, which is what the families hold; a synchronous one would need the
        # differences. A name that first appears after this call has no instrument.
        create = meter.create_observable_counter if family[0].kind == "counter" else meter.create_observable_gauge
        create(name, callbacks=[partial(_observations, collection, name)], description=family[0].help)


class _Collection:
    """The families of the current collection. Mutable.

    An SDK calls the instruments one by one and does not mark where a collection begins. A second call of the same
    instrument therefore begins a new collection, and the families are read again.
    """

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families
        self._asked: set[str] = set()
        self.by_name: dict[str, list[Family]] = {}
        self._refresh()
        self._asked = set(self.by_name)  # so that the first collection reads the families again

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of one instrument."""
        if name in self._asked:
            self._refresh()
        self._asked.add(name)
        for family in self.by_name.get(name, ()):
            yield from family.samples

    def _refresh(self) -> None:
        self._asked.clear()
        self.by_name = {}
        for family in self._families():
            self.by_name.setdefault(family.name, []).append(family)


def _observations(collection: _Collection, name: str, _options: CallbackOptions) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    for sample in collection.samples(name):
        yield Observation(sample.value, dict(sample.labels))
