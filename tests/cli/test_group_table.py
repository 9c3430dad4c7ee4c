"""Cells of the table of streams groups."""

from __future__ import annotations

from headrace.cli.group_table import Row, byte_text, clock_text, plain_rows, short_line, tasks_text


def test_words_of_the_table() -> None:
    assert tasks_text({"flights": (0, 1, 2, 5), "by-origin": (7,)}) == "flights 0-2,5   by-origin 7"
    assert [byte_text(size) for size in (None, 900, 98_304, 5 << 20, 3 << 30)] == [
        "-",
        "900 B",
        "96 KiB",
        "5 MiB",
        "3.0 GiB",
    ]
    assert [clock_text(seconds) for seconds in (0, 59.9, 61, 600)] == ["0:00", "0:59", "1:01", "10:00"]
    row = Row(
        name="A", pid=7, tasks=12, which="flights 0-3", records_per_s=1811.2, lag=402, batch_ms=160, state_bytes=98_304
    )
    assert short_line(row) == "A 12 tasks, 1,811/s, lag 402"
    assert short_line(Row(name="B", note="killed (SIGKILL)", gone=True)) == "B killed (SIGKILL)"
    titles, cells = plain_rows([row])
    assert titles.split()[-3:] == ["lag", "batch", "state"]
    assert cells.split()[-5:] == ["402", "0.16", "s", "96", "KiB"]
