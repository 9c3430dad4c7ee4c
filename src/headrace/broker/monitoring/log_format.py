"""How the broker's log lines look: a line for people, or one JSON document per line for machines.

Callers may add facts, `extra={"facts": {...}}`: text lines show them behind the sentence, JSON has them as fields.
Neither ever holds a record's content or a secret: facts are names, numbers, addresses. What a client may have chosen
(client ids, topic names) cannot forge a line: control characters are written as escapes.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

__all__ = ["LEVELS", "JsonFormatter", "LogFormat", "TextFormatter", "log_to"]

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error")
# Beyond ASCII's: C1 (U+0080 to U+009F), which some terminals obey, and the line ends U+2028 and U+2029. A client
# chooses its client id, and could forge lines of the log with them.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def log_to(stream: TextIO, *, level: str, log_format: LogFormat) -> None:
    """Send all log lines of this process to a stream. `level` is one of LEVELS."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    if level == "debug":
        # asyncio's own talk at debug is about its selector.
        logging.getLogger("asyncio").setLevel(logging.INFO)


class TextFormatter(logging.Formatter):
    """`2026-11-21 09:21:14,123 WARNING The sentence. [api=Fetch total_ms=2100.0]`, tracebacks below."""

    def format(self, record: logging.LogRecord) -> str:
        # Both parts are escaped: message and facts hold names that clients choose.
        facts = " ".join(f"{name}={value}" for name, value in _facts(record).items())
        line = _escaped(record.getMessage()) + (f" [{_escaped(facts)}]" if facts else "")
        time = f"{self.formatTime(record)} {record.levelname}"
        trouble = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time} {line}{trouble}"


class JsonFormatter(logging.Formatter):
    """time (UTC, ISO 8601), level, logger, message, the facts, and `exception` with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        at = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        document: dict[str, object] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        document.update((name, value) for name, value in _facts(record).items() if name not in document)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def _facts(record: logging.LogRecord) -> Mapping[str, object]:
    facts = getattr(record, "facts", None)
    return facts if isinstance(facts, Mapping) else {}


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_for_machines() -> bool:
    """Whether the root logger writes JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def print_message(text: str, **facts: object) -> None:
    """Print a message for the operator whatever the log level: to standard error, as JSON when the log is."""
    # A supervisor that parses JSON lines gets the banner as one, too.
    if is_for_machines():
        record = logging.LogRecord("headrace.broker", logging.INFO, "", 0, "%s", (text,), None)
        record.facts = facts
        text = JsonFormatter().format(record)
    print(text, file=sys.stderr, flush=True)
