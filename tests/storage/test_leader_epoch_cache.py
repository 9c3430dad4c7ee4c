"""Leader epochs of a log: rebuilt, truncated, and where each of them ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.log_samples import batch, opened
from tests.storage.recovered_logs import SETTINGS
from tests.storage.small_logs import of_six


@pytest.mark.parametrize("epochs", [(1, 1), (0, 0), (0, 2), (1, 3, 3)])
def test_lost_leader_epochs_are_found_in_the_batches_and_written(tmp_path: Path, epochs: tuple[int, ...]) -> None:
    log = opened(tmp_path, **SETTINGS)
    for epoch in epochs:
        log.append(batch("record 0"), leader_epoch=epoch)
    clean = log.close()
    checkpoint = tmp_path / "leader-epoch-checkpoint"
    written = checkpoint.read_bytes()
    for closed in (clean, None):
        checkpoint.unlink()
        log = opened(tmp_path, **SETTINGS, clean=closed)
        assert tuple(log.leader_epoch_for(offset) for offset in range(len(epochs))) == epochs
        log.abandon()
        assert checkpoint.read_bytes() == written


@pytest.mark.parametrize("first", [0, 1])
def test_leader_epochs_whose_batches_compaction_removed_are_believed(tmp_path: Path, first: int) -> None:
    log = opened(tmp_path, **SETTINGS)
    for epoch in (first, first, 5):
        log.append(batch("record 0"), leader_epoch=epoch)
    clean = log.close()
    checkpoint = tmp_path / "leader-epoch-checkpoint"
    checkpoint.write_text(f"0\n3\n{first} 0\n3 1\n5 2\n")
    log = opened(tmp_path, **SETTINGS, clean=clean)
    assert [log.leader_epoch_for(offset) for offset in range(3)] == [first, 3, 5]


def test_a_truncated_leader_epoch_is_forgotten_on_the_disk_too(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for epoch in (0, 0, 3):
        log.append(batch("x"), leader_epoch=epoch)
    log.truncate_to(2)
    assert log.leader_epoch == 0
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_the_newest_leader_epoch_ends_where_the_log_ends(tmp_path: Path) -> None:
    log = of_six(tmp_path)
    assert log.end_offset_for_epoch(0) == (0, 6)
    assert log.end_offset_for_epoch(1) == (-1, -1)
