"""Programs of the pages are accepted: each is declared and compiled, in one Spark session, without running it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, fences

from headrace.spark import session


@pytest.mark.spark
def test_programs_of_the_pages_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session("headrace-tests", master="local[2]", settings={"spark.sql.shuffle.partitions": "2"})
    airports = spark.createDataFrame([("EWR", "Newark")], "origin string, name string")
    airports.write.parquet(str(tmp_path / "airports"))
    monkeypatch.setitem(os.environ, "POD_NAME", "pod-1")
    compiled = 0
    for page in PAGES:
        for program in fences(page, "python"):
            if not re.search(r"^app = StreamsApp\(", program, re.MULTILINE) or "app.start()" in program:
                continue  # the others show classes, or need a broker
            names = {"__name__": "program"}
            exec(compile(program.replace('"/data/', f'"{tmp_path}/'), str(page.relative_to(ROOT)), "exec"), names)
            if ".stream(" in program:
                names["app"].compile()  # type: ignore[attr-defined]
                compiled += 1
    assert compiled > 15
