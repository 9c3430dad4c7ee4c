"""The worker daemon: an idle worker that the JVM closes goes without a word, a failing task is reported as ever."""

import os
import subprocess
import sys

import pytest

from headrace.spark.runtime.daemon import exit_quietly

pyspark = pytest.importorskip("pyspark")

WORKER = """
import os, socket, sys
import pyspark.worker
from headrace.spark.runtime.daemon import exit_quietly
os.environ["PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE"] = "1"
whose, sent = sys.argv[1:]
sys.argv[1:] = []
if whose == "ours":
    pyspark.worker.main = exit_quietly(pyspark.worker.main)
from pyspark.daemon import worker  # PySpark 4.0 looks at sys.argv and at the worker's main function here
mine, jvm = socket.socketpair()
jvm.sendall(bytes.fromhex(sent))
jvm.close()
sys.exit(worker(mine, True))
"""


def closed_worker(whose, sent=b""):
    """PySpark's own worker function on a socket whose other end sent something and closed."""
    command = [sys.executable, "-c", WORKER, whose, sent.hex()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONWARNINGS": ""})


def is_reported(ended):
    """Whether the worker reported the broken connection: PySpark 4.0 by its exit code alone."""
    if pyspark.__version__.startswith("4.0."):
        return ended.returncode == 255
    return "BrokenPipeError" in ended.stderr


def test_a_worker_closed_while_idle_is_silent():
    ended = closed_worker("ours")
    assert (ended.returncode, ended.stderr, ended.stdout) == (1, "", "")


def test_without_ours_it_is_not():
    """What this is for; when it fails, PySpark has mended it and the daemon's part can go."""
    assert is_reported(closed_worker("pyspark"))


def test_a_task_that_breaks_off_is_still_reported():
    assert is_reported(closed_worker("ours", b"\x00\x00"))


def test_an_error_of_a_task_passes():
    def fails(_infile, _outfile):
        raise ConnectionResetError("within a task")

    reading, writing = os.pipe()
    os.write(writing, b"task")
    os.close(writing)
    with os.fdopen(reading, "rb") as infile, pytest.raises(ConnectionResetError):
        exit_quietly(fails)(infile, None)
