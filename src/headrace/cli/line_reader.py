"""A line of text as a record, by kafka-console-producer's reader properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click

from headrace.errors import HeadraceError
from headrace.near_names import nearest
from headrace.protocol.record_batches import PlainRecord

__all__ = ["LineReader"]

_KNOWN = (
    "parse.key", "key.separator", "parse.headers", "headers.delimiter", "headers.separator", "headers.key.separator",
    "null.marker", "ignore.error",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader:
    """`[headers⇥][key⇥]value`, the parts only when asked for; `null_marker` stands for null."""

    parse_key: bool = False
    key_separator: bytes = b"\t"
    parse_headers: bool = False
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineReader:
        """Raises wrong usage for a property that does not exist."""
        unknown = [name for name in properties if name not in _KNOWN]
        if unknown:
            near = nearest(unknown[0], _KNOWN)
            hint = f"Did you mean {near!r}?" if near else f"Properties: {', '.join(_KNOWN)}."
            raise click.UsageError(f"There is no reader property {unknown[0]!r}. {hint}")

        def flag(name: str) -> bool:
            return properties.get(name, "false").strip().lower() == "true"

        def text(name: str, default: bytes) -> bytes:
            given = properties.get(name)
            return default if given is None else given.replace("\\t", "\t").encode()

        marker = properties.get("null.marker")
        return cls(
            parse_key=flag("parse.key"),
            key_separator=text("key.separator", b"\t"),
            parse_headers=flag("parse.headers"),
            headers_delimiter=text("headers.delimiter", b"\t"),
            headers_separator=text("headers.separator", b","),
            headers_key_separator=text("headers.key.separator", b":"),
            null_marker=None if marker is None else marker.encode(),
            ignore_error=flag("ignore.error"),
        )

    def record(self, line: bytes, number: int) -> PlainRecord:
        """Raises HeadraceError `bad-line`, naming the line, when a separator is missing."""
        headers: tuple[tuple[str, bytes | None], ...] = ()
        key: bytes | None = None
        rest = line
        if self.parse_headers:
            text, rest = self._split(rest, self.headers_delimiter, "headers delimiter", number)
            headers = () if self._is_null(text) else self._headers(text, number)
        if self.parse_key:
            found, rest = self._split(rest, self.key_separator, "key separator", number)
            key = None if self._is_null(found) else found
        return PlainRecord(value=None if self._is_null(rest) else rest, key=key, headers=headers)

    def _split(self, line: bytes, separator: bytes, what: str, number: int) -> tuple[bytes, bytes]:
        before, found, after = line.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            return self.null_marker or b"", line
        shown = line[:80].decode("utf-8", "replace")
        raise HeadraceError(
            "bad-line",
            f"line {number} has no {what} {separator.decode()!r}: {shown}",
            "mend the line, name the separator (--reader-property key.separator=:), or set ignore.error=true",
        )

    def _headers(self, text: bytes, number: int) -> tuple[tuple[str, bytes | None], ...]:
        pairs = []
        for part in text.split(self.headers_separator):
            name, value = self._split(part, self.headers_key_separator, "header key separator", number)
            pairs.append((name.decode("utf-8", "replace"), None if self._is_null(value) else value))
        return tuple(pairs)

    def _is_null(self, text: bytes) -> bool:
        return self.null_marker is not None and text == self.null_marker
