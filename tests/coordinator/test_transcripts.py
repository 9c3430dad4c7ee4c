"""Transcripts of the coordinator: stories of groups of all three types as text files, readable without Python.

`transcripts/README.md` has the commands. After an intended change: `pytest tests/coordinator/test_transcripts.py
--rewrite`, then review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.coordinator.classic_transcript import ClassicTranscript
from tests.coordinator.recording_context import ConsumerTranscript, StreamsTranscript
from tests.coordinator.transaction_transcript import TransactionTranscript
from tests.harness.transcripts import check_transcript

TRANSCRIPTS = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("streams/*.txt")), ids=lambda path: path.stem)
def test_streams_group(path: Path, rewrite: bool) -> None:
    check_transcript(path, StreamsTranscript().run, rewrite=rewrite)


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("consumer/*.txt")), ids=lambda path: path.stem)
def test_consumer_group(path: Path, rewrite: bool) -> None:
    check_transcript(path, ConsumerTranscript().run, rewrite=rewrite)


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("classic/*.txt")), ids=lambda path: path.stem)
def test_classic_group(path: Path, rewrite: bool) -> None:
    check_transcript(path, ClassicTranscript().run, rewrite=rewrite)


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("transactions/*.txt")), ids=lambda path: path.stem)
def test_transactions(path: Path, rewrite: bool) -> None:
    check_transcript(path, TransactionTranscript().run, rewrite=rewrite)
