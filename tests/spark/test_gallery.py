"""The example gallery: its page shows the programs as they are, and what they write for the input beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.docs.pages import ROOT

from headrace.testing import TopologyTest

PAGE = ROOT / "docs/how-to/gallery.md"
PROGRAMS = sorted((ROOT / "examples/gallery").glob("*.py"))
_SECTION = re.compile(
    r"`examples/gallery/(?P<name>\w+)\.py`:\n\n```python\n(?P<code>.*?)```\n(?P<rest>.*?)(?=\n## |\Z)", re.DOTALL
)
_ROWS = re.compile(r"(?P<kind>Input|Output) `(?P<topic>[^`]+)`:\n\n```json\n(?P<rows>.*?)```", re.DOTALL)
SECTIONS = {found["name"]: found for found in _SECTION.finditer(PAGE.read_text())}


def rows_of(name: str, kind: str) -> dict[str, list[str]]:
    """Return the lines of each topic in a section."""
    found = _ROWS.finditer(SECTIONS[name]["rest"])
    return {one["topic"]: one["rows"].splitlines() for one in found if one["kind"] == kind}


def test_the_page_shows_every_program_as_it_is() -> None:
    assert sorted(SECTIONS) == [path.stem for path in PROGRAMS]
    for path in PROGRAMS:
        assert SECTIONS[path.stem]["code"] == path.read_text()
        assert len(path.read_text().splitlines()) < 40


@pytest.mark.spark
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_writes_what_the_page_shows(path: Path, spark: SparkSession) -> None:
    del spark  # the active session
    # Not by `runpy`: classes of the program would be pickled as those of a module that ends with the call.
    program: dict[str, Any] = {"__name__": "program", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), program)
    app = program["app"]
    found: dict[str, list[str]] = {}
    with TopologyTest(app) as test:
        for topic, lines in rows_of(path.stem, "Input").items():
            test.push(topic, lines)
        test.run()
        for topic in rows_of(path.stem, "Output"):
            found[topic] = list(shown(test, topic))
    assert found == rows_of(path.stem, "Output")
    assert all(found.values())


def shown(test: TopologyTest, topic: str) -> Iterator[str]:
    """Yield the lines of a topic: the newest row of each key, or every record where records have no key."""
    rows: dict[Any, bytes | None] = {}
    for number, record in enumerate(test.records(topic)):
        rows.pop(record.key, None)
        rows[number if record.key is None else record.key] = record.value
    for value in rows.values():
        if value is not None:
            yield json.dumps(json.loads(value))
