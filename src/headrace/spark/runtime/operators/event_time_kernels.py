"""The compiled loops of event time: late rows, the first row of each set of duplicates, and sessions.

The first two decide row by row in the order of the offsets, so what they decide depends on the rows before a row and
on nothing else: not on where a micro-batch begins or ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.njit import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.spark.runtime.stores.byte_spans import Positions


__all__ = ["NO_TIME", "find_closed", "find_duplicates", "find_late", "number_sessions", "warm_up"]

NO_TIME = -(1 << 63)
"""In place of an event time: there is none."""


@njit(cache=True, nogil=True)
def find_late(
    times: Positions, record_times: Positions, newest: int, delay: int, most_ahead: int
) -> tuple[NDArray[np.bool_], int]:
    """Return the mask of late rows, and the newest event time after them.

    Args:
        times: Event time of each row, `NO_TIME` where it has none. All times are in microseconds.
        record_times: Timestamp of each row's record, negative where it has none.
        newest: Newest event time of the rows before; `NO_TIME` without any.
        delay: How far a row may lie behind the newest event time before it.
        most_ahead: A row whose event time is further ahead of its record's timestamp does not move the watermark.
    """
    late = np.zeros(len(times), np.bool_)
    # 1. A row is compared with the newest event time before it, its own not included.
    for row in range(len(times)):
        time = times[row]
        # A row without an event time cannot be placed, hence it is never on time. Below `NO_TIME + delay` the
        # difference would wrap around.
        late[row] = time == NO_TIME or (newest > NO_TIME + delay and time < newest - delay)
        # 2. An event time far ahead of the record's own timestamp (a broken clock of a producer) would make all rows
        #    after it late. It is kept as a row, but does not move the watermark.
        is_ahead = record_times[row] >= 0 and time > record_times[row] + most_ahead
        if time > newest and not is_ahead:
            newest = time
    return late, newest


@njit(cache=True, nogil=True)
def find_closed(
    times: Positions, ends: Positions, record_times: Positions, newest: int, delay: int, most_ahead: int
) -> tuple[NDArray[np.bool_], int]:
    """Return the mask of rows whose window was closed before them, and the newest event time after them.

    As `find_late`, but a row is late only if its window is closed, which is Spark's rule for windows: a row older than
    the watermark still counts while its window is open. A row never closes its own window, because a window ends after
    the event times in it. So copies of a row in several hopping windows may follow one another.

    Args:
        times: Event time of each row, `NO_TIME` where it has none. All times are in microseconds.
        ends: End of each row's window.
        record_times: Timestamp of each row's record, negative where it has none.
        newest: Newest event time of the rows before; `NO_TIME` without any.
        delay: How far the watermark is behind the newest event time.
        most_ahead: A row whose event time is further ahead of its record's timestamp does not move the watermark.
    """
    late = np.zeros(len(times), np.bool_)
    for row in range(len(times)):
        time = times[row]
        late[row] = time == NO_TIME or (newest > NO_TIME + delay and ends[row] <= newest - delay)
        is_ahead = record_times[row] >= 0 and time > record_times[row] + most_ahead
        if time > newest and not is_ahead:
            newest = time
    return late, newest


@njit(cache=True, nogil=True)
def find_duplicates(
    times: Positions, before: Positions, own: Positions, after: Positions, kept: Positions, delay: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the mask of rows that are duplicates, and the mask of the places that rows were put into.

    A place is a key in one span of event time, and `kept` is the event time of the kept row in each place (`NO_TIME`:
    none). It is changed. `before`, `own` and `after` are each row's place and its neighbours in time: no other can hold
    a row at most `delay` away.
    """
    duplicate, placed = np.zeros(len(times), np.bool_), np.zeros(len(kept), np.bool_)
    for row in range(len(times)):
        time = times[row]
        # Kept rows of this micro-batch and of the store are treated alike: `kept` holds both, so a cut between
        # micro-batches changes nothing.
        for place in (before[row], own[row], after[row]):
            if kept[place] != NO_TIME and abs(time - kept[place]) <= delay:
                duplicate[row] = True
        if not duplicate[row]:
            kept[own[row]] = time
            placed[own[row]] = True
    return duplicate, placed


@njit(cache=True, nogil=True)
def number_sessions(keys: Positions, firsts: Positions, lasts: Positions, gap: int) -> Positions:
    """Return the number of each piece's session, from 0. A piece is a row, or a session that is stored.

    Args:
        keys: Number of each piece's key. Pieces are in the order of keys, and of their first times.
        firsts: Time of the first row of each piece, in microseconds.
        lasts: Time of its last row.
        gap: The longest time between two rows that follow one another in a session.
    """
    numbers = np.empty(len(keys), np.int64)
    number, last = -1, 0
    for piece in range(len(keys)):
        # 1. Spark's `MergingSessionsIterator` joins what begins at or before the end of the session so far: a row at
        #    the very end of a session is part of it.
        if piece == 0 or keys[piece] != keys[piece - 1] or firsts[piece] > last + gap:
            number += 1
            last = lasts[piece]
        # 2. The latest time so far, not that of the piece before: a stored session may contain the pieces behind it.
        last = max(last, lasts[piece])
        numbers[piece] = number
    return numbers


def warm_up() -> None:
    """Compile, or load from the cache."""
    times, places = np.zeros(1, np.int64), np.zeros(1, np.int64)
    find_late(times, times, NO_TIME, 0, 0)
    find_closed(times, times, times, NO_TIME, 0, 0)
    find_duplicates(times, places, places, places, np.full(1, NO_TIME, np.int64), 0)
    number_sessions(places, times, times, 0)
