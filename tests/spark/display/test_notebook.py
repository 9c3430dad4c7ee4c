"""The example notebook, executed by a Jupyter kernel: its outputs, and the progress that updated while it ran."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from tests.harness.values import not_none

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Jupyter's own packages, about each other
    from nbclient import NotebookClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOTEBOOK = Path(__file__).parents[3] / "examples" / "flight_delays.ipynb"
RECORDS = 30_000


SHOW_PROGRESS = "progress = running.show_progress()"
# A cell of this test: without it, an application that starts slowly processes all records in one micro-batch, and no
# state between the first and the last is ever displayed.
WAIT_FOR_RECORDS = """import pathlib, time
while not pathlib.Path({seen!r}).exists():
    time.sleep(0.05)
"""


class ObservedNotebook(NotebookClient):
    """Keeps every state of the displays that the notebook updates; the notebook itself keeps the last one.

    Creates the file `seen` when a display shows records.
    """

    def __init__(self, notebook: Any, seen: Path, **kwargs: Any) -> None:
        super().__init__(notebook, **kwargs)
        self.seen = seen
        self.states: list[str] = []

    def process_message(self, message: Any, cell: Any, cell_index: int) -> Any:
        if message["msg_type"] in {"display_data", "update_display_data"}:
            state = message["content"]["data"]["text/plain"]
            self.states.append(state)
            if re.search(r" tasks · [1-9][\d,]* records", state):
                self.seen.touch()
        return super().process_message(message, cell, cell_index)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> ObservedNotebook:
    seen = tmp_path_factory.mktemp("notebook") / "seen"
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    [shown] = [at for at, cell in enumerate(notebook.cells) if cell.source.splitlines()[-1] == SHOW_PROGRESS]
    notebook.cells.insert(shown + 1, nbformat.v4.new_code_cell(WAIT_FOR_RECORDS.format(seen=str(seen))))
    client = ObservedNotebook(notebook, seen, timeout=240, kernel_name="python3")
    client.execute(cwd=str(NOTEBOOK.parent))
    return client


def output_of(executed: ObservedNotebook, last_line: str, kind: str = "text/html") -> str:
    """Return the output of the cell that ends with `last_line`."""
    [cell] = [cell for cell in executed.nb.cells if cell.source.splitlines()[-1] == last_line]
    [found] = [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]
    return str(found)


def test_streams_and_tables_show_their_source_and_columns(executed):
    stream = output_of(executed, "flights")
    assert "reads flights (json)" in stream
    assert re.search(r"dep_delay</td><td[^>]*>double", stream)
    table = output_of(executed, "by_origin")
    assert "reads flights (json) → where → groupBy(origin).agg" in table
    assert re.search(r"mean_delay</td><td[^>]*>double", table)


def test_progress_is_updated_while_the_application_runs(executed):
    states = [re.search(r": ([a-z-]+) · \d+ tasks · ([\d,]+) records", text) for text in executed.states]
    assert all(states), executed.states
    seen = [(state[1], int(state[2].replace(",", ""))) for state in map(not_none, states)]
    assert "running" in {state for state, _ in seen}
    assert seen[-1] == ("stopped", RECORDS)
    counts = [count for _, count in seen]
    assert counts == sorted(counts)
    assert len(set(counts)) >= 3, counts  # before the first records, between, and at the end
    # The notebook holds one output for all of it, which shows the end.
    assert "stopped" in output_of(executed, SHOW_PROGRESS)


def test_the_running_application_and_the_verdict_are_shown(executed):
    running = output_of(executed, "running")
    assert ">running</span>" in running
    assert f"{RECORDS:,}" in running
    verdict = output_of(executed, "verdict")
    assert ">equal</span>" in verdict
    assert f"{RECORDS:,} input records compared" in verdict
    results = output_of(
        executed, next(c for c in executed.nb.cells if "sort_values" in c.source).source.splitlines()[-1]
    )
    assert all(origin in results for origin in ("EWR", "JFK", "LGA"))


def test_the_notebook_is_stored_without_outputs():
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert [cell for cell in stored.cells if cell.get("outputs") or cell.get("execution_count")] == []
