"""`headrace prepare`: the archive of Spark's classes is made, mapped by the next JVM, and never in the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_lines import headrace_process
from tests.longer import longer

from headrace.spark.cds_archive import archive_options, archive_path

STARTS_SPARK = """
from headrace.spark import session
spark = session("prepared")
assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
print(open(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read())
"""


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = headrace_process("prepare", HEADRACE_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert outcome.code == 1
    assert "error[not-prepared]" in outcome.err
    assert "Traceback" not in outcome.err


def started(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STARTS_SPARK]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)


@pytest.mark.spark
@pytest.mark.slow
def test_a_prepared_jvm_maps_its_archive() -> None:
    """`make test` has made the archive before."""
    prepared = headrace_process("prepare", "--if-missing", timeout=600)
    assert prepared.code == 0, prepared.err
    (path,) = prepared.out.splitlines()
    assert Path(path).stat().st_size > 50_000_000
    told = started()
    assert path in told.stdout
    assert not re.search("cds|archive", told.stderr)


@longer
@pytest.mark.spark
@pytest.mark.slow
def test_an_archive_of_no_use_is_ignored_in_silence(tmp_path: Path) -> None:
    from headrace.spark.spark_session import check_java

    tmp_path.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
        archive = archive_path(check_java())
        archive.write_bytes(os.urandom(100_000))
        archive.chmod(0o400)
        assert str(archive) in archive_options(check_java())
    told = started(HEADRACE_CACHE_DIR=str(tmp_path))
    assert not re.search("cds|archive", told.stderr + told.stdout.replace(str(archive), ""))
