"""Redirection of the start-up messages that Spark writes to stderr at every log level.

The output of Spark's JVM goes to a file while the block runs. The file is deleted after an error of this package; after
any other error the message names it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from headrace.cli.terminal import talk
from headrace.errors import HeadraceError
from headrace.temporary_directories import OwnedDirectory

__all__ = ["spark_quietly"]


@contextlib.contextmanager
def spark_quietly() -> Iterator[None]:
    """File descriptor 2 goes to a temporary file inside the block; sys.stderr (Python's own talk) does not."""
    if os.environ.get("HEADRACE_DEBUG"):
        yield
        return
    directory = OwnedDirectory("headrace-cli-")
    path = directory.path / "spark.log"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    terminal = os.dup(2)
    ours = os.fdopen(os.dup(2), "w", buffering=1)
    python_stderr = sys.stderr
    keep = False
    try:
        sys.stderr.flush()
        os.dup2(handle, 2)
        sys.stderr = ours
        yield
    except (HeadraceError, SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        keep = True
        raise
    finally:
        sys.stderr = python_stderr
        os.dup2(terminal, 2)
        ours.close()
        os.close(terminal)
        os.close(handle)
        if keep:
            directory.keep()
            talk(f"what Spark wrote: {path}")
        directory.remove()
