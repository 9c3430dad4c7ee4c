"""The recording tool: what a terminal shows, as frames and as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from docs.recordings.terminal_session import Key, Recording, Type, WaitFor, record, screen_of, sped_up
from docs.recordings.terminal_svg import LAST_SCREEN_S, LONGEST_PAUSE_S, animation, still

SVG = "{http://www.w3.org/2000/svg}"
PROMPT = r"\$ *$"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A command with colours, and one that is interrupted."""
    return record(
        [
            Type(r"printf '\033[31;1mre''d\033[0m <&> plain\n'"),
            WaitFor("red <&> plain"),
            Type("sleep 100"),
            WaitFor("sleep 100"),
            Key("\x03"),
            WaitFor(r"\^C[\s\S]*\$ "),
        ],
        cwd=tmp_path_factory.mktemp("session"),
        columns=60,
        rows=8,
    )


def lines(screen: object) -> list[str]:
    return ["".join(run.text for run in line) for line in screen]  # type: ignore[attr-defined]


def test_a_session_shows_input_and_output(recording: Recording) -> None:
    at, last = recording.screens[-1]
    assert 0 < at <= recording.seconds < 60
    assert any("red <&> plain" in line for line in lines(last))
    assert any("^C" in line for line in lines(last))
    (red,) = [run for line in last for run in line if run.text == "red"]
    assert (red.colour, red.bold, red.column) == ("red", True, 0)
    typed = {lines(screen)[0] for _, screen in recording.screens}
    assert len(typed) > 10  # key by key


def test_a_pattern_that_does_not_appear_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="never"):
        record([WaitFor("never", timeout_s=0.2)], cwd=tmp_path)


def test_the_animation_shows_each_screen_for_its_time(recording: Recording) -> None:
    text = animation(recording, "a <title>")
    document = ET.fromstring(text)
    frames = [group for group in document.iter(f"{SVG}g") if group.get("class") == "f"]
    assert len(frames) == len(recording.screens)
    stored = {group.get("id") for group in document.iter(f"{SVG}g")}
    assert all(use.get("href", "#")[1:] in stored for use in document.iter(f"{SVG}use"))
    assert "<script" not in text
    assert "red" in "".join(document.itertext())
    style = next(document.iter(f"{SVG}style")).text or ""
    assert all(f"#f{number}{{animation-name:k{number}}}" in style for number in range(len(frames)))
    seconds = float(style.split("animation:")[1].split("s ")[0])
    assert LAST_SCREEN_S < seconds <= LAST_SCREEN_S + LONGEST_PAUSE_S * len(frames)


def test_a_text_becomes_a_screen_as_high_as_it_is() -> None:
    screen = screen_of("one\n" + "x" * 25 + "\n<three>\n", columns=10)
    assert lines(screen) == ["one", "x" * 10, "x" * 10, "x" * 5, "<three>"]
    document = ET.fromstring(still([("before", screen), ("after", screen)], 10))
    shown = [text.text for text in document.iter(f"{SVG}text")]
    assert shown.count("<three>") == 2
    assert {"before", "after"} <= set(shown)


def test_a_recording_that_is_sped_up_has_fewer_screens_and_the_same_end() -> None:
    first, second, third = (screen_of(text, columns=10) for text in ("one", "two", "three"))
    fast = sped_up(Recording(10, 1, [(0.0, first), (1.0, second), (9.0, third)], 10.0), speed=5, shortest_s=0.3)
    assert fast.screens == [(0.0, second), (1.8, third)]
    assert fast.seconds == 2.0
