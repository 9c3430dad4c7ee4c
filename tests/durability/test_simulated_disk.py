"""Random histories of a whole broker on a disk that is full, fails or forgets; by hand: `make disk RUNS=5000`.

Seeds that once violated an invariant are played in every run. (They lead to the same history only as long as the
requests in `history.py` stay the same; what they found has a test of its own where a short one exists.)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.durability.history import History

STEPS = 60
FAST, SLOW = range(6), range(6, 61)
FOUND = (46, 76, 137, 174, 193, 210, 273, 341, 370, 598, 909, 1167, 1361)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Failing disks are logged thousands of times."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL + 1)
    yield
    logging.getLogger("headrace").setLevel(logging.NOTSET)


def play(seed: int) -> None:
    try:
        History(seed).play(STEPS)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("seed", [*FAST, *FOUND])
def test_acknowledged_writes_survive_random_faults(seed: int) -> None:
    play(seed)


@pytest.mark.slow
def test_acknowledged_writes_survive_many_random_histories() -> None:
    for seed in SLOW:
        play(seed)
