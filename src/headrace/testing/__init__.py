"""Tests of Kafka code without Docker: a real broker in the test's process, fault injection, a manual clock.

The pytest plugin (`headrace.testing.plugin`) provides the fixtures; see docs/how-to/testing.md. Names are imported on
first use, so that a test run that does not use them pays nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker, EmbeddedGroup, Record
    from headrace.broker.faults import Fault, Faults
    from headrace.broker.manual_clock import ManualClock
    from headrace.spark.topology_test import TopologyTest
    from headrace.testing.real_cluster import RealCluster

__all__ = ["EmbeddedBroker", "EmbeddedGroup", "Fault", "Faults", "ManualClock", "RealCluster", "Record", "TopologyTest"]

_MODULES = {
    "EmbeddedBroker": "headrace.broker.embedded",
    "EmbeddedGroup": "headrace.broker.embedded",
    "Fault": "headrace.broker.faults",
    "Faults": "headrace.broker.faults",
    "ManualClock": "headrace.broker.manual_clock",
    "RealCluster": "headrace.testing.real_cluster",
    "Record": "headrace.broker.embedded",
    "TopologyTest": "headrace.spark.topology_test",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace.testing' has no attribute '{name}'")
    found: object = getattr(importlib.import_module(module), name)
    # `__getattr__` of a module (PEP 562) runs only for names that it lacks: the next access does not come here.
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
