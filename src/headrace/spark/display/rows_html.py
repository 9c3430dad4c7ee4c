"""HTML of a `Stream` and a `StreamTable`: where the rows come from and which columns they have."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.spark.display.html_elements import box, heading, note, table

__all__ = ["rows_html"]


def rows_html(
    kind: str,
    app_name: str,
    sources: Sequence[tuple[str, Sequence[str]]],
    columns: Sequence[tuple[str, str]],
    hint: str,
) -> str:
    """Return the sources with the calls made on each, and the columns with their types.

    Args:
        kind: The class of the object.
        app_name: The application's name.
        sources: (topics and format, names of the calls since) for each input.
        columns: (name, type) in order.
        hint: What to do next; a stream has no rows to show before the application runs.
    """
    return box(
        heading(kind, app_name),
        "".join(note(f"reads {' → '.join((source, *calls))}") for source, calls in sources),
        table(("column", "type"), columns),
        note(hint),
    )
