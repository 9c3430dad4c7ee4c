"""Metric families as observable instruments of an OpenTelemetry meter, under the names of the Prometheus page.

Needs the extra `otel`, which is the API alone; the program chooses the SDK and the exporter behind the meter.
"""

from __future__ import annotations

import threading
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

    A name that first appears later gets its instrument after the collection that found it.

    Args:
        meter: Meter of an OpenTelemetry SDK.
        families: Called once per collection; returns the current families. There must be one at least at this call:
            its instrument finds the others.

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
    _Instruments(meter, families).register()


class _Instruments:
    """The instruments of one meter, and the families of the current collection. Mutable.

    An SDK calls the instruments one by one and does not mark where a collection begins. A second call of the same
    instrument therefore begins a new collection, and the families are read again.
    """

    def __init__(self, meter: Meter, families: Callable[[], Iterable[Family]]) -> None:
        self._meter = meter
        self._families = families
        self._asked: set[str] = set()
        self._registered: set[str] = set()
        self._registering = threading.Lock()
        self._by_name: dict[str, list[Family]] = {}
        self._refresh()
        self._asked = set(self._by_name)  # so that the first collection reads the families again

    def register(self) -> None:
        """Create the instruments of all names that have none yet."""
        with self._registering:
            for name, family in self._by_name.copy().items():
                if name in self._registered:
                    continue
                self._registered.add(name)
                # An observable counter reports totals, which is what the families hold; a synchronous one would need
                # the differences.
                counts = family[0].kind == "counter"
                create = self._meter.create_observable_counter if counts else self._meter.create_observable_gauge
                create(name, callbacks=[partial(_observations, self, name)], description=family[0].help)

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of one instrument."""
        if name in self._asked:
            self._refresh()
            if not self._registered.issuperset(self._by_name):
                # A name that appeared late. The SDK calls this callback with the lock held that a new instrument needs
                # (`SynchronousMeasurementConsumer.collect`), so registering here would wait for ever. The thread waits
                # for the end of this collection; the next one has the instrument.
                threading.Thread(target=self.register, name="headrace-otel-register", daemon=True).start()
        self._asked.add(name)
        for family in self._by_name.get(name, ()):
            yield from family.samples

    def _refresh(self) -> None:
        self._asked.clear()
        by_name: dict[str, list[Family]] = {}
        for family in self._families():
            by_name.setdefault(family.name, []).append(family)
        self._by_name = by_name


def _observations(instruments: _Instruments, name: str, _options: CallbackOptions) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    for sample in instruments.samples(name):
        yield Observation(sample.value, dict(sample.labels))
