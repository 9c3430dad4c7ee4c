"""Random histories of groups with members of both protocols: see `mixed_histories`."""

from __future__ import annotations

import pytest
from tests.coordinator.consumer.mixed_histories import MixedHistory


@pytest.mark.parametrize("seed", range(4))
def test_history(seed: int) -> None:
    history = MixedHistory(seed)
    for _ in range(120):
        history.step()
        history.check()
    assert history.went_up
    assert history.went_down
    history.settle()
