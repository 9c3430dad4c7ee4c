"""Temporary directories end with their owner, whatever way it ends."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.temporary_directories import OwnedDirectory

OWNER = """
import sys, time
from headrace.temporary_directories import OwnedDirectory
print(OwnedDirectory("headrace-test-").path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_it_is_removed_at_the_end() -> None:
    with OwnedDirectory("headrace-test-") as directory:
        (directory.path / "A.log").write_text("…")
    assert not directory.path.exists()


def test_leftovers_of_a_killed_process_are_removed_at_start() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with OwnedDirectory("headrace-test-"):
            assert left.is_dir(), "its owner lives"
        owner.kill()
        owner.wait()
    with OwnedDirectory("headrace-other-"):
        assert left.is_dir(), "another prefix is another owner's matter"
    with OwnedDirectory("headrace-test-"):
        assert not left.exists()


def test_a_kept_directory_stays() -> None:
    with OwnedDirectory("headrace-test-") as directory:
        directory.keep()
    with OwnedDirectory("headrace-test-"):
        assert directory.path.is_dir()
