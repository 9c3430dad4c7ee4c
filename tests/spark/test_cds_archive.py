"""The archive of Spark's classes: whose it is, and which Java may map it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.spark.cds_archive import archive_options, archive_path


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for Java's; the cache is empty."""
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    path = tmp_path / "java"
    path.write_text("17")
    return path


def test_the_jvm_is_told_of_an_archive_that_is_there(java: Path) -> None:
    assert archive_options(str(java)) == ""
    archive = archive_path(str(java))
    archive.write_bytes(b"classes")
    archive.chmod(0o400)
    assert archive_options(str(java)).startswith(f"-XX:SharedArchiveFile={archive} -Xlog:")


def test_an_archive_that_others_can_write_is_not_used(java: Path) -> None:
    """A JVM runs what lies in it."""
    archive = archive_path(str(java))
    archive.write_bytes(b"classes")
    archive.chmod(0o666)
    assert archive_options(str(java)) == ""
    archive.chmod(0o400)
    archive.parent.chmod(0o777)
    assert archive_options(str(java)) == ""


def test_another_java_has_another_archive(java: Path) -> None:
    before = archive_path(str(java))
    os.utime(java, (1, 1))
    assert archive_path(str(java)) != before
