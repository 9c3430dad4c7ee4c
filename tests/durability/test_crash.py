"""kill -9 of a real broker under load, 70 times (200 with HEADRACE_LONG=1; by hand: `make crash CYCLES=5000`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")
from tests.durability.crash import crash
from tests.longer import LONG

CYCLES = 200 if LONG else 70


@pytest.mark.foreign
@pytest.mark.slow
def test_repeated_kill_9_loses_no_acknowledged_write(tmp_path: Path) -> None:
    run = crash(CYCLES, seed=1, directory=tmp_path)
    assert run.failures == []
    assert len(run.starts) == CYCLES + 1
    assert run.acknowledged > 200
    assert run.access.acknowledgements > 0
    assert "committed" in run.own_transactions.outcomes.values()
