"""Transcripts of members of groups: stories of one member as text files, readable without Python.

`transcripts/README.md` has the commands. After an intended change: `pytest
tests/client/membership/test_transcripts.py --rewrite`, then review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.client.membership.member_transcript import (
    ClassicMemberTranscript,
    ConsumerMemberTranscript,
    StreamsMemberTranscript,
)
from tests.harness.transcripts import check_transcript

TRANSCRIPTS = Path(__file__).parent / "transcripts"
KINDS = {
    "classic": ClassicMemberTranscript,
    "consumer": ConsumerMemberTranscript,
    "streams": StreamsMemberTranscript,
}


@pytest.mark.parametrize(
    "path", sorted(TRANSCRIPTS.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_member(path: Path, rewrite: bool) -> None:
    check_transcript(path, KINDS[path.parent.name]().run, rewrite=rewrite)
