"""The transcript of a world is the same for the same seed."""

from __future__ import annotations

import os
import subprocess
import sys

from headrace.simulator.simulation import KINDS


def test_a_seed_gives_the_same_transcript_under_every_hash_seed() -> None:
    play = "from headrace.simulator.simulation import *\n"
    play += "for kind in KINDS: print(*simulate(11, kind).transcript, sep='\\n')"
    stories = {
        subprocess.run(
            [sys.executable, "-c", play],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(stories) == 1
    assert stories.pop().count("settled: one member less") == len(KINDS)
