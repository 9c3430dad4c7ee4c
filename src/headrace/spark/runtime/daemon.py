"""PySpark's worker daemon with everything imported before it forks (`spark.python.daemon.module`).

A worker that dies is replaced in 0.3 s instead of 1.2 s, workers share the pages of what is imported, and the
`gc.collect()` that PySpark runs after each task finds nothing to walk through. No thread may exist when it forks:
importing starts none, and the kernels are only loaded, not run in parallel. Switched off by
`headrace.spark.session(..., preload_workers=False)`.

The JVM closes workers that had nothing to do for a minute. PySpark's worker takes the end of its input for a task that
failed, reports that to the closed socket and prints the BrokenPipeError of it; ours sees the end between two tasks and
goes. Whatever breaks within a task is PySpark's to report, as before.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Callable
from typing import Any

from headrace.spark.runtime.rows import row_kernels

PRELOADED = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pandas",
    "lmdb",
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "headrace.protocol.messages",
    "headrace.protocol.arrow_batches",
    "headrace.client.fetcher",
    "headrace.client.producer",
    "headrace.spark.formats",
    "headrace.spark.runtime.batches.stages",
    "headrace.spark.runtime.stores.restore_stage",
)
# Compiled code that a worker would otherwise load in the middle of its first micro-batch, a quarter of a second of it.
WARMED = (
    "headrace.protocol.arrow_batches",
    "headrace.spark.formats.json_columns",
    "headrace.spark.runtime.operators.aggregate_kernels",
    "headrace.spark.runtime.stores.bulk_load",
    "headrace.spark.runtime.operators.event_time_kernels",
)


def preload() -> None:
    """Import the modules that stages need. Modules that are not installed are left to the worker that needs them."""
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    row_kernels.warm_up()
    for module in WARMED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module).warm_up()
    # Frozen objects are not touched by later collections, so forked workers keep sharing their pages.
    gc.collect()
    gc.freeze()


def exit_quietly(run_task: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return `run_task(infile, outfile)` with a check for closed input before the first byte of a task.

    It then raises SystemExit(1) without output. The exit code keeps PySpark's daemon from waiting for another task on
    the same socket.
    """

    def run(infile: Any, outfile: Any) -> None:
        try:
            has_task = bool(infile.peek(1))
        except ConnectionError:
            has_task = False
        if not has_task:
            raise SystemExit(1)
        run_task(infile, outfile)

    return run


def main() -> None:
    """Run PySpark's daemon with preloaded modules; the entry point of `spark.python.daemon.module`."""
    preload()
    import pyspark.worker

    pyspark.worker.main = exit_quietly(pyspark.worker.main)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
