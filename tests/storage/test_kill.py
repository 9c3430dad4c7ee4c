"""kill -9 of a process that appends: every acknowledged record is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.storage.log_samples import contents

from headrace.storage.log_directory import LogDirectory

WRITER = """
import sys, uuid
from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory
from tests.storage.log_samples import append

directory = LogDirectory(sys.argv[1], defaults=LogConfig(segment_bytes=20_000))
log = directory.create_log("flights", 0, uuid.UUID(int=7))
n = log.log_end_offset
while True:
    append(log, f"record {n} " + "x" * (n * 37 % 3000))
    print(n, flush=True)  # the acknowledgement
    n += 1
"""


@pytest.mark.parametrize("rounds", [3])
def test_acknowledged_records_survive_kill_9(tmp_path: Path, rounds: int) -> None:
    acknowledged = -1
    for _ in range(rounds):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        with writer.stdout:
            target = acknowledged + 150
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged == target:
                    writer.send_signal(signal.SIGKILL)
            writer.wait()
        with LogDirectory(tmp_path) as directory:
            log = directory.log("flights", 0)
            assert log.recovered
            assert log.log_end_offset > acknowledged >= target
            found = contents(log)
        assert [offset for offset, _ in found] == list(range(len(found)))
        assert all(value.startswith(f"record {offset} ") for offset, value in found)
        acknowledged = len(found) - 1
