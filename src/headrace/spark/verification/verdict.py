"""Result of `verify` as plain data, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from headrace.spark.display.html_elements import Badge, box, heading, note, table

EXIT_EQUAL, EXIT_DIFFERS, EXIT_CANNOT_TELL = 0, 4, 5
_BADGES: Final = {
    "equal": Badge("equal", "good"),
    "repeated": Badge("equal but for repeats", "good"),
    "differs": Badge("differs", "bad"),
    "cannot-tell": Badge("cannot tell", "busy"),
}
_COLUMNS: Final = ("sink", "kind", "expected", "found", "equal", "differ", "missing", "extra", "lost", "repeated")
MOST_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkVerdict:
    """Comparison of one sink with the recomputation. Rows of a table are its keys, rows of a stream its records.

    `repeated` and `lost` count input records: those counted too often or too rarely (a table), or records of the topic
    itself (a stream). `examples` are a few wrong or repeated rows as text.
    """

    topic: str
    kind: Literal["table", "stream"]
    expected: int
    found: int
    equal: int
    differ: int = 0
    missing: int = 0
    extra: int = 0
    repeated: int = 0
    lost: int = 0
    examples: tuple[str, ...] = ()
    undecided: str = ""  # why equality cannot be claimed for this sink

    @property
    def wrong(self) -> bool:
        return bool(self.differ or self.missing or self.extra or self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The application against one Spark batch over the same input.

    `status`: "equal"; "repeated": equal but for records counted again, which at least once allows after a crash;
    "differs"; "cannot-tell". `exit_code`: 0 for the first two, 4, 5.
    """

    app_name: str
    guarantee: str
    records: int  # input records read
    bad_records: int  # of those, not decodable
    waiting: int  # records in the input topics that the application has not yet committed
    sinks: tuple[SinkVerdict, ...]
    cannot_claim: tuple[str, ...] = ()
    undecided: str = ""  # why nothing can be claimed at all

    @property
    def status(self) -> Literal["equal", "repeated", "differs", "cannot-tell"]:
        if self.undecided:
            return "cannot-tell"
        if any(sink.wrong and not sink.undecided for sink in self.sinks):
            return "differs"
        if any(sink.undecided for sink in self.sinks) or not self.sinks:
            return "cannot-tell"
        if any(sink.repeated for sink in self.sinks):
            return "repeated" if self.guarantee == "at_least_once" else "differs"
        return "equal"

    @property
    def passed(self) -> bool:
        return self.status in {"equal", "repeated"}

    @property
    def exit_code(self) -> int:
        if self.status == "cannot-tell":
            return EXIT_CANNOT_TELL
        return EXIT_EQUAL if self.passed else EXIT_DIFFERS

    def as_document(self) -> dict[str, Any]:
        """Plain dictionaries and lists, for JSON."""
        return {**asdict(self), "status": self.status, "passed": self.passed, "exit_code": self.exit_code}

    def _repr_html_(self) -> str:
        return _html(self)


def _html(verdict: Verdict) -> str:
    """Return the verdict as HTML."""
    summary = f"{verdict.records:,} input records compared · processing guarantee {verdict.guarantee}"
    if verdict.bad_records:
        summary += f" · {verdict.bad_records:,} could not be decoded and are left out on both sides"
    if verdict.waiting:
        summary += f" · {verdict.waiting:,} not committed yet and not compared"
    return box(
        heading("Verdict", verdict.app_name, _BADGES[verdict.status]),
        note(summary),
        note(f"Cannot tell: {verdict.undecided}", "busy") if verdict.undecided else "",
        table(_COLUMNS, [_row(sink) for sink in verdict.sinks]) if verdict.sinks else "",
        "".join(_remarks(sink) for sink in verdict.sinks),
        "".join(note(f"Not compared: {claim}") for claim in verdict.cannot_claim),
    )


def _row(sink: SinkVerdict) -> tuple[str | int, ...]:
    counts = (sink.expected, sink.found, sink.equal, sink.differ, sink.missing, sink.extra, sink.lost, sink.repeated)
    return (sink.topic, sink.kind, *counts)


def _remarks(sink: SinkVerdict) -> str:
    undecided = note(f"{sink.topic}: cannot tell: {sink.undecided}", "busy") if sink.undecided else ""
    return undecided + "".join(note(f"{sink.topic}: {example}", "bad") for example in sink.examples[:MOST_EXAMPLES])
