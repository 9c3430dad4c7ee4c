"""Transcripts of rounds of transactional requests, readable without Python.

`round a b` begins one for two transactional ids. `answer a CODE`, `unanswered a` (the connection broke), `found a` (its
coordinator was looked up) and `give-up` (the time is up) are what the client meets. Rewritten by `--rewrite`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.round_transcript import RoundTranscript
from tests.harness.transcripts import check_transcript

TRANSCRIPTS = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_round_of_requests(path: Path, rewrite: bool) -> None:
    check_transcript(path, RoundTranscript().run, rewrite=rewrite)
