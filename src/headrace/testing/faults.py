"""What `EmbeddedBroker.faults` is made of, for type annotations in tests."""

from __future__ import annotations

from headrace.broker.faults import Fault, Faults

__all__ = ["Fault", "Faults"]
