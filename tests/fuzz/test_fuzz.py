"""The frames that once did harm, and twenty seconds of new ones (a minute: HEADRACE_LONG=1; more: `make fuzz`)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from tests.fuzz.campaign import Campaign, frame_from_hex
from tests.longer import LONG

CORPUS = Path(__file__).parent / "corpus.txt"
"""One frame a line: what it once did, a colon, the frame with its length in hexadecimal."""
CAMPAIGN_S = 60.0 if LONG else 20.0  # about 1,000 frames per second; every run has a new seed


def corpus() -> dict[str, list[str]]:
    """Frames by what they did. Several under one name are sent in their order: some hurt only after another."""
    frames: dict[str, list[str]] = {}
    for line in CORPUS.read_text().splitlines():
        if line and not line.startswith("#"):
            what, _, data = line.rpartition(":")
            frames.setdefault(what.strip(), []).append(data.strip())
    return frames


@pytest.mark.slow
def test_frames_with_fixed_defects_pass() -> None:
    with Campaign(seed=0) as campaign:
        for what, frames in corpus().items():
            for frame in frames:
                campaign.play([frame_from_hex(frame)])
            assert [str(finding) for finding in campaign.outcome.findings] == [], what
        campaign.run(seconds=0)
    assert [str(finding) for finding in campaign.outcome.findings] == []


@pytest.mark.slow
def test_random_frames_leave_the_broker_healthy() -> None:
    """A new seed each time, shown when it finds something: HEADRACE_FUZZ_SEED repeats it."""
    seed = int(os.environ.get("HEADRACE_FUZZ_SEED") or random.SystemRandom().getrandbits(32))
    with Campaign(seed) as campaign:
        outcome = campaign.run(CAMPAIGN_S)
    assert [str(finding) for finding in outcome.findings] == [], f"HEADRACE_FUZZ_SEED={seed}"
    assert outcome.answered > outcome.frames / 4
