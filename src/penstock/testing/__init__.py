"""Testing Kafka code without Docker: a real broker in the test's process, faults on demand, a clock that tests move.

The pytest plugin (`penstock.testing.plugin`) gives the fixtures; docs/testing.md shows them. Names are loaded when they
are first asked for, so that a test run that does not use them pays nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.embedded import EmbeddedBroker, EmbeddedGroup, Record
    from penstock.broker.faults import Fault, Faults
    from penstock.broker.manual_clock import ManualClock
    from penstock.testing.real_cluster import RealCluster

__all__ = ["EmbeddedBroker", "EmbeddedGroup", "Fault", "Faults", "ManualClock", "RealCluster", "Record"]

_MODULES = {
    "EmbeddedBroker": "penstock.broker.embedded",
    "EmbeddedGroup": "penstock.broker.embedded",
    "Fault": "penstock.broker.faults",
    "Faults": "penstock.broker.faults",
    "ManualClock": "penstock.broker.manual_clock",
    "RealCluster": "penstock.testing.real_cluster",
    "Record": "penstock.broker.embedded",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.testing' has no attribute '{name}'")
    found: object = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
