"""Picture of an executed notebook: its cells as a page, photographed by a headless Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from readme_renderer import markdown

__all__ = ["executed_page", "photograph"]

STYLE = """
body { font: 15px/1.45 'DejaVu Sans', sans-serif; margin: 24px 36px; color: #1f2328; background: #fff; width: 900px }
.code { background: #f6f8fa; border: 1px solid #d8dee4; border-radius: 4px; padding: 6px 12px; margin-top: 10px }
pre { margin: 0; white-space: pre-wrap; font: 13px/1.4 'DejaVu Sans Mono', monospace }
.output { padding: 6px 12px } table { border-collapse: collapse; margin: 6px 0; font-size: 13px }
th, td { padding: 3px 10px } tbody tr:nth-child(odd) { background: #f6f8fa } th { border-bottom: 1px solid #d8dee4 }
"""


def executed_page(notebook: Path, *, first: int, last: int, timeout_s: int = 240) -> str:
    """Execute the notebook and return the cells `first` to `last` as HTML, as they were when `last` had been executed.

    The cells behind `last` are executed too, so that the notebook ends what it started.
    """
    document = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        document, timeout=timeout_s, kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}
    )
    page = ""
    with client.setup_kernel():
        for number, cell in enumerate(document.cells):
            client.execute_cell(cell, number)
            if number == last:
                page = _page(document.cells[first : last + 1])
    return page


def _page(cells: Sequence[Any]) -> str:
    formatter = HtmlFormatter()
    body = "".join(_cell(cell, formatter) for cell in cells)
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}{formatter.get_style_defs()}</style><body>{body}"


def photograph(page: str, target: Path, *, width: int = 980, height: int) -> None:
    """Write a PNG of the HTML page."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "page.html"
        source.write_text(page)
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={target}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def _cell(cell: Any, formatter: HtmlFormatter[str]) -> str:
    if cell.cell_type == "markdown":
        return str(markdown.render(cell.source))
    outputs = "".join(_output(output) for output in cell.outputs)
    return (
        f'<div class="code">{highlight(cell.source, PythonLexer(), formatter)}</div><div class="output">{outputs}</div>'
    )


def _output(output: Any) -> str:
    if output.output_type == "stream":
        return f"<pre>{escape(output.text)}</pre>"
    data = output.get("data", {})
    return str(data.get("text/html") or f"<pre>{escape(data.get('text/plain', ''))}</pre>")
