"""Random histories of a streams group. HEADRACE_HISTORIES=n runs n of them, of HEADRACE_HISTORY_STEPS steps each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.properties.streams_histories import run

HISTORIES = int(os.environ.get("HEADRACE_HISTORIES", "60"))
STEPS = int(os.environ.get("HEADRACE_HISTORY_STEPS", "120"))
CHUNKS = 6


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_histories_are_safe_and_settle(chunk: int) -> None:
    revocations = 0
    for seed in range(chunk, HISTORIES, CHUNKS):
        history = run(seed, STEPS)
        revocations += history.did["close_tasks"]
    assert revocations, "the histories never revoked anything"


def test_the_hash_seed_of_python_changes_nothing() -> None:
    script = Path(__file__).with_name("streams_histories.py")
    digests = {
        subprocess.run(
            [sys.executable, str(script), "11", "150"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64
