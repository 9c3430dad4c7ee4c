"""Columns as Kafka's tools print them: left-justified to a width, one space between, nothing behind the last one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Column", "align", "kafka_table"]

Column = tuple[str, int]  # title, least width; 0: the last column, not padded


def kafka_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, grow: Iterable[str] = ()) -> list[str]:
    """Lines of the table, header first. Columns in `grow` become as wide as their longest value."""
    texts = [[str(value) for value in row] for row in rows]
    growing = set(grow)
    widths = []
    for index, (title, least) in enumerate(columns):
        longest = max((len(row[index]) for row in texts), default=0) if title in growing else 0
        widths.append(max(least, longest))
    return [_line([title for title, _ in columns], widths), *(_line(row, widths) for row in texts)]


def align(rows: Sequence[Sequence[str]], *, indent: str = "", gap: str = "  ") -> list[str]:
    """Our own tables: columns as wide as they need, trailing blanks cut."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        indent + gap.join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(value.ljust(size) for value, size in zip(values, widths, strict=True))
