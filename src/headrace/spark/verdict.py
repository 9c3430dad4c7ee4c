"""What `verify` found: plain data, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from headrace.spark.display.verdict_html import verdict_html

EXIT_EQUAL, EXIT_DIFFERS, EXIT_CANNOT_TELL = 0, 4, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkVerdict:
    """One sink topic against the recomputation. Rows of a table are its keys, of a stream its records.

    `repeated` and `lost` count input records: those a count holds too many or too few of (a table), or records of the
    topic itself (a stream). `examples` are a few rows of what is wrong or repeated, in words.
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
        return verdict_html(self)
