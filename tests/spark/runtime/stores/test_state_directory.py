"""The state directory: cleanup of former tasks, later formats, its id."""

import os
import time
from pathlib import Path

import pytest

from headrace.errors import StateError
from headrace.spark.runtime.stores.state_directory import StateDirectory


def test_stores_of_former_tasks_are_deleted_after_the_cleanup_delay(tmp_path):
    directory = StateDirectory(tmp_path, "group")
    for task in ("counts_0", "counts_1", "counts_2"):
        (tmp_path / task / "by-origin").mkdir(parents=True)
        (tmp_path / task / "by-origin" / "data.mdb").write_bytes(b"x" * 10_000)
    (tmp_path / "counts_0" / "by-origin.corrupt").mkdir()
    for path in (tmp_path / "counts_1", tmp_path / "counts_1" / "by-origin" / "data.mdb"):
        os.utime(path, (time.time() - 900, time.time() - 900))
    assert directory.tasks(["counts"]) == [("counts", 0), ("counts", 1), ("counts", 2)]
    assert directory.disk_bytes() >= 30_000
    [(gone, freed)] = directory.clean_up([("counts", 0)], 600.0)
    assert (gone, freed > 9_000) == (("counts", 1), True)
    assert directory.tasks(["counts"]) == [("counts", 0), ("counts", 2)], "the other was written to just now"
    assert [task for task, _ in directory.clean_up([("counts", 0)], -1.0)] == [("counts", 2)]
    assert not (tmp_path / "counts_0" / "by-origin.corrupt").exists()
    assert directory.tasks(["other"]) == []
    directory.release()


def test_a_directory_of_a_later_format_is_refused(tmp_path):
    StateDirectory(tmp_path, "group").release()
    StateDirectory(tmp_path, "group").release()
    facts = {"format": 2, "group": "group"}
    from headrace.spark.runtime.stores import state_directory

    (tmp_path / "state.json").write_text(
        f'{{"format": 2, "group": "group", "checksum": "{state_directory._checksum(facts)}"}}'
    )
    with pytest.raises(StateError) as refused:
        StateDirectory(tmp_path, "group")
    assert refused.value.code == "state-format"
    (tmp_path / "state.json").write_text('{"format": 2, "group": "group", "checksum": "x"}')
    StateDirectory(tmp_path, "group").release()  # unreadable: written anew, with a warning


def test_an_id_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty `process.id`, as a power cut left it, made all such instances one process to the assignor."""
    directory = StateDirectory(tmp_path, "group")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            _ = directory.process_id
    assert not (tmp_path / "process.id").exists()
    kept = directory.process_id
    assert len(kept) == 36
    assert directory.process_id == kept
    directory.release()
