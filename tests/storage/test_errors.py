"""Failures of the disk: what the error names, and what a failed log refuses."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable

import pytest
from tests.storage.faulty_file_system import NOTHING_FAILS, FaultyFileSystem, error
from tests.storage.log_samples import append, batch, opened
from tests.storage.small_logs import LOGS, append_fast, of_six

from headrace.storage.errors import LogFailed, StorageFull
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

# (operation that fails, of which files, what is done, what the message says)
FAILURES: list[tuple[str, str, Callable[[PartitionLog], object], str]] = [
    ("write", ".log", lambda log: append(log, "x"), "did not take an append"),
    ("write", ".log", lambda log: append_fast(log, batch("x")), "did not take an append"),
    (
        "write",
        "leader-epoch-checkpoint",
        lambda log: log.append(batch("x"), leader_epoch=1),
        "did not take a new leader epoch",
    ),
    (
        "write",
        "leader-epoch-checkpoint",
        lambda log: append_fast(log, batch("x"), leader_epoch=1),
        "did not take a new leader epoch",
    ),
    ("open", "00006.log", lambda log: append(log, "x"), "could not begin a new segment"),
    ("read", ".log", lambda log: log.read(4, 100), "could not be read"),
    ("read", ".log", lambda log: log.read_span(4, 100), "could not be read"),
]


@pytest.mark.parametrize(("operation", "suffix", "action", "words"), FAILURES)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_disk_failure_names_the_partition_and_the_operation(
    operation: str, suffix: str, action: Callable[[PartitionLog], object], words: str, code: int
) -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    log.flush()
    if suffix != "00006.log":
        log.reconfigure(LogConfig())  # no new segment
    disk.failures = lambda asked, path: (
        error(code, path) if (asked, path.name.endswith(suffix)) == (operation, True) else None
    )
    with pytest.raises(StorageFull if code == errno.ENOSPC else LogFailed) as caught:
        action(log)
    assert caught.value.message.startswith(f"The log of partition flights-0 {words}: ")
    assert (errno.errorcode[code] == "EIO") is ("Errno" in caught.value.message)
    assert isinstance(caught.value.__cause__, OSError)
    assert log.log_end_offset == 6
    assert log.is_usable is (code == errno.ENOSPC)
    disk.failures = NOTHING_FAILS
    if code == errno.ENOSPC:
        assert append(log, "after") == 6


@pytest.mark.parametrize(
    ("operation", "action", "words"),
    [
        ("sync", lambda log: log.flush(), "could not be flushed"),
        ("sync_directory", lambda log: log.flush(), "could not be flushed"),
        ("truncate", lambda log: log.truncate_to(5), "could not be truncated"),
        ("remove", lambda log: log.truncate_to(3), "could not be truncated"),
        ("sync_directory", lambda log: log.truncate_to(3), "could not be truncated"),
    ],
)
def test_failed_flush_or_truncation_fails_the_log_with_the_reason(
    operation: str, action: Callable[[PartitionLog], object], words: str
) -> None:
    disk = FaultyFileSystem()
    log = of_six(LOGS, file_system=disk)
    disk.failures = lambda asked, path: error(errno.EIO, path) if asked == operation else None
    reason = re.escape(f"The log of partition flights-0 {words}: ")
    with pytest.raises(LogFailed, match=reason):
        action(log)
    disk.failures = NOTHING_FAILS
    for again in (lambda: append(log, "x"), log.flush, log.apply_retention, lambda: log.truncate_to(1)):
        with pytest.raises(LogFailed, match=reason):
            again()


def test_a_directory_that_cannot_be_made_is_a_log_that_could_not_be_opened() -> None:
    disk = FaultyFileSystem()
    disk.failures = lambda asked, path: error(errno.ENOSPC, path) if asked == "make_directory" else None
    with pytest.raises(StorageFull, match="flights-0 could not be opened: no room"):
        opened(LOGS, file_system=disk)
