"""The runner of transcripts: what it compares, what it writes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.transcripts import Command, check_transcript, play_transcript

STORY = """# Two sums.

add 1 2
----
3

# A comment of the second
# command.
add 2 by=3
----
nothing
"""


def _run(command: Command) -> list[str]:
    assert command.verb == "add", f"unknown command: {command.verb}"
    return [] if command.options else [str(sum(map(int, command.words)))]


def test_expected_output_passes(tmp_path: Path) -> None:
    story = tmp_path / "sums.txt"
    story.write_text(STORY)
    check_transcript(story, _run, rewrite=False)
    assert story.read_text() == STORY


def test_other_output_fails_and_leaves_the_file(tmp_path: Path) -> None:
    story = tmp_path / "sums.txt"
    story.write_text(STORY.replace("\n3\n", "\n4\n"))
    with pytest.raises(AssertionError, match="out of date"):
        check_transcript(story, _run, rewrite=False)
    assert "\n4\n" in story.read_text()


@pytest.mark.parametrize("before", [STORY.replace("\n3\n", "\n4\n"), STORY.replace("----\n3\n", "").rstrip()])
def test_rewriting_changes_only_output(tmp_path: Path, before: str) -> None:
    story = tmp_path / "sums.txt"
    story.write_text(before)
    check_transcript(story, _run, rewrite=True)
    assert story.read_text() == STORY


@pytest.mark.parametrize(
    ("story", "message"), [("add 1\nadd 2", "empty line is missing"), ("subtract 1", "unknown command: subtract")]
)
def test_malformed_stories_are_refused(story: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        play_transcript(story, _run)


def test_commands_have_words_and_options() -> None:
    command = Command.parse("join m1 instance=a owns=")
    assert (command.verb, command.words, command.options) == ("join", ("m1",), {"instance": "a", "owns": ""})
    with pytest.raises(AssertionError, match="needs 2 words"):
        command.word(1)
