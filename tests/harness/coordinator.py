"""Doubles around the coordinator's rules: a log that refuses appends, and the error of a refused request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from headrace.broker.coordinators.coordinator_runtime import AppendFailed
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorRecord

__all__ = ["RefusingLog", "error_of"]


class RefusingLog:
    """Log of a shard in memory. Mutable: while `refuses` is true, each append fails; `appended` holds the others."""

    def __init__(self) -> None:
        self.refuses = False
        self.appended: list[CoordinatorRecord] = []

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        """Keep the records, or raise AppendFailed."""
        if self.refuses:
            raise AppendFailed("no room")
        self.appended += records

    def read_all(self) -> Iterator[CoordinatorRecord]:
        """Return the records in the order of their appends."""
        return iter(self.appended)


def error_of(request: Callable[[], object]) -> str:
    """Return the name of Kafka's error code with which the coordinator refuses the request."""
    with pytest.raises(CoordinatorError) as caught:
        request()
    return caught.value.code.name
