"""Checkpoints of a data directory."""

from __future__ import annotations

from pathlib import Path

from tests.storage.log_samples import ID

from headrace.storage.log_config import LogConfig
from headrace.storage.log_directory import LogDirectory


def test_flushing_what_is_due_and_checkpointing(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, defaults=LogConfig(flush_ms=0))
    directory.create_topic("flights", ID, 2)
    from tests.storage.log_samples import batch

    directory.log("flights", 0).append(batch("a"), leader_epoch=1, flush_now=False)
    assert directory.flush_due_logs() == 1
    assert directory.flush_due_logs() == 0
    directory.checkpoint()
    assert "flights 0 1\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    directory.abandon()
