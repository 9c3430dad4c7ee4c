"""Frames out of a byte stream, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.framing import FrameBuffer, FrameTooLarge


def framed(frame: bytes) -> bytes:
    return len(frame).to_bytes(4, "big") + frame


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_whole_and_in_order(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, frames))
    buffer = FrameBuffer(40)
    got: list[bytes] = []
    for size in [*cuts, len(stream)]:
        buffer.feed(stream[:size])
        stream = stream[size:]
        got += buffer.frames()
    assert got == frames
    assert buffer.buffered_bytes == 0


@given(
    st.lists(st.sampled_from((0, 1, 5_000, 9_000, 30_000)), max_size=6),
    st.lists(st.tuples(st.sampled_from((1, 3, 4, 5, 4_096, 5_000, 20_000, 60_000)), st.booleans()), max_size=20),
)
def test_large_frames_that_come_in_pieces(sizes: list[int], cuts: list[tuple[int, bool]]) -> None:
    """Some pieces are only fed, and looked at together with the next."""
    frames = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(framed, frames))
    buffer = FrameBuffer(30_000)
    got: list[bytes] = []
    for size, looked_at in [*cuts, (len(stream), True)]:
        buffer.feed(stream[:size])
        stream = stream[size:]
        if looked_at:
            got += buffer.frames()
    assert got == frames
    assert buffer.buffered_bytes == 0


def test_a_reader_may_stop_between_two_frames() -> None:
    buffer = FrameBuffer(10)
    buffer.feed(framed(b"one") + framed(b"two"))
    for frame in buffer.frames():
        assert frame == b"one"
        break
    assert list(buffer.frames()) == [b"two"]


@pytest.mark.parametrize("length", [11, 2**31 - 1, -1])
def test_too_large_a_frame_is_refused_by_its_length_alone(length: int) -> None:
    buffer = FrameBuffer(10)
    buffer.feed(framed(b"fits") + length.to_bytes(4, "big", signed=True))
    frames = buffer.frames()
    assert next(frames) == b"fits"
    with pytest.raises(FrameTooLarge, match=f"{length} bytes"):
        next(frames)
