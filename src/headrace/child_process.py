"""How a process of this package starts another one of its own."""

from __future__ import annotations

import sys

__all__ = ["python_module"]


def python_module(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of this package, or of a library, in the same Python.

    `-P` keeps the working directory off the child's import path: `python -m` would put it first, and a `json.py` lying
    there would run inside a process that is handed credentials. PYTHONPATH still counts.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
