"""Random histories of consumer groups: see `consumer_histories`."""

from __future__ import annotations

import pytest
from tests.coordinator.consumer.consumer_histories import History


@pytest.mark.parametrize("seed", range(5))
def test_history(seed: int) -> None:
    history = History(seed)
    for _ in range(70):
        history.step()
        history.check()
    history.settle()
