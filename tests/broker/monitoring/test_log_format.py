"""Log lines of the broker, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from headrace.broker.monitoring.log_format import JsonFormatter, TextFormatter


def record(message: str, *arguments: object, **more: Any) -> Any:
    made = logging.LogRecord("headrace.broker", logging.WARNING, "", 0, message, arguments, None)
    vars(made).update(more)
    return made


def test_text_and_json_lines_escape_control_characters() -> None:
    line = record("Closed %s.", "a\nb\x1b[31m\u2028", facts={"api": "Fetch", "total_ms": 2.5})
    text = TextFormatter().format(line)
    assert text.endswith(r"WARNING Closed a\nb\x1b[31m\u2028. [api=Fetch total_ms=2.5]")
    document = json.loads(JsonFormatter().format(line))
    assert document.pop("time").endswith("Z")
    assert document == {
        "level": "WARNING",
        "logger": "headrace.broker",
        "message": "Closed a\nb\x1b[31m\u2028.",
        "api": "Fetch",
        "total_ms": 2.5,
    }
    assert "\n" not in JsonFormatter().format(line)


def test_a_traceback_is_part_of_the_json_document() -> None:
    try:
        raise ValueError("what happened")
    except ValueError:
        line = record("It failed.", exc_info=sys.exc_info())
    assert "ValueError: what happened" in json.loads(JsonFormatter().format(line))["exception"]
    assert TextFormatter().format(line).splitlines()[-1] == "ValueError: what happened"
