"""The environment of a store: writes that the disk has no room for, or only for a part of them."""

import os

import pytest
from tests.harness.small_disk import mounted_small_disk

from headrace.errors import StateError
from headrace.spark.runtime.stores import store_environment
from headrace.spark.runtime.stores.store_environment import StoreEnvironment

VALUES = 100_000  # bytes of a transaction


def write(environment, n):
    """Write one transaction of `VALUES` bytes."""

    def put(transaction):
        for page in range(0, VALUES, 2_000):
            transaction.put(f"{n}-{page}".encode(), os.urandom(2_000))

    environment.write(put)


def write_several(environment):
    """Write until pages of earlier transactions are no longer enough."""
    for n in range(1, 5):
        write(environment, n)


@pytest.mark.parametrize("missing", [1, 4096, 5000, 40_000, VALUES])
def test_a_write_without_room_says_that_the_disk_is_full(tmp_path, missing):
    """LMDB reports a write of which a part had room as an I/O error, as when other files took the rest."""
    with mounted_small_disk(tmp_path / "disk", "2m") as disk:
        environment = StoreEnvironment(disk / "store")
        write(environment, 0)
        ballast = disk / "ballast"
        ballast.touch()
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        ballast.write_bytes(bytes(free - VALUES + missing))
        with pytest.raises(StateError, match=r"the disk of the state directory .* is full") as failed:
            write_several(environment)
        assert failed.value.code == "disk-full"
        ballast.unlink()
        environment.close()
        environment = StoreEnvironment(disk / "store")  # a write of the meta page may have failed: open it again
        write(environment, 1)
        environment.close()


def test_an_io_error_of_a_disk_with_room_names_the_store(tmp_path, monkeypatch):
    """The words of the failure are LMDB's, of a real short write; only the room found behind it is another."""
    monkeypatch.setattr(store_environment, "is_disk_full", lambda path: False)
    codes = set()
    for missing in range(4096, VALUES, 8192):
        with mounted_small_disk(tmp_path / "disk", "2m") as disk:
            environment = StoreEnvironment(disk / "store")
            write(environment, 0)
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            (disk / "ballast").write_bytes(bytes(free - VALUES + missing))
            with pytest.raises(StateError) as failed:
                write_several(environment)
            codes.add(failed.value.code)
            if failed.value.code == "state-unusable":
                assert str(disk / "store") in failed.value.message
            environment.close()
    assert "state-unusable" in codes
