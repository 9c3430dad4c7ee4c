"""THE WIRE. Bytes to messages and back (on kio), frames, record batches, Arrow. Opens no socket, reads no clock."""

from __future__ import annotations

import importlib
import sys


def _import_kio_alone() -> None:
    """kio imports Hypothesis, wherever it is installed, to register strategies for its types: 0.3 s of every start.

    Brokers, guardians and Spark workers have no use for that, so Hypothesis is hidden while kio is first imported.
    Nothing is hidden where Hypothesis (a test run) or kio is loaded already.
    """
    if "hypothesis" in sys.modules or "kio.static.primitive" in sys.modules:
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes its import an ImportError
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        del sys.modules["hypothesis"]


_import_kio_alone()
