"""The reader of segments sees what it is there for: a transaction with two ends, and where a record went."""

from pathlib import Path

from tests.chaos.segments import faults, places_of

from headrace.protocol.batch_headers import control_batch
from headrace.protocol.record_batches import PlainRecord, encode_batch


def segment(data: Path, partition: str, *batches: bytes) -> None:
    """The partition in two segments."""
    (data / partition).mkdir(parents=True)
    for number, part in ((0, batches[:1]), (1, batches[1:])):
        (data / partition / f"{number:020d}.log").write_bytes(b"".join(part))


def written(text: bytes, offset: int, *, epoch: int, producer_id: int = 7) -> bytes:
    records = [PlainRecord(value=text, timestamp_ms=1)]
    return encode_batch(
        records,
        compression="lz4",
        base_offset=offset,
        transactional=True,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
    )


def marker(control, offset: int, *, epoch: int, producer_id: int = 7) -> bytes:
    return control_batch(control, producer_id=producer_id, producer_epoch=epoch, timestamp_ms=1, base_offset=offset)


def test_differing_and_missing_markers_are_reported(tmp_path: Path) -> None:
    segment(tmp_path, "sums-0", written(b"a", 0, epoch=1), marker("commit", 1, epoch=2), written(b"c", 2, epoch=2))
    segment(tmp_path, "sums-1", written(b"b", 0, epoch=1), marker("abort", 1, epoch=2))
    different = "sums-0: commit (0 to 0); sums-1: abort (0 to 0)"
    assert faults(tmp_path) == [
        f"the transaction of producer 7, epoch 1, ended in different ways: {different}",
        "the transaction of producer 7, epoch 2, has no end: sums-0: open (2 to 2)",
    ]
    assert list(places_of(tmp_path, b"b")) == ["sums-1@0, producer 7, epoch 1, sequence 0, abort: b'b'"]


def test_missing_marker_joins_a_transaction_to_the_next_one(tmp_path: Path) -> None:
    """As readers take it: that is how rows of a committed transaction would be lost to one that is aborted."""
    segment(tmp_path, "sums-0", written(b"a", 0, epoch=1), written(b"b", 1, epoch=2), marker("abort", 2, epoch=3))
    segment(tmp_path, "sums-1", written(b"c", 0, epoch=1), marker("commit", 1, epoch=2))
    assert [fault.split(":")[0] for fault in faults(tmp_path)] == [
        "the transaction of producer 7, epoch 1, ended in different ways"
    ]


def test_correct_segments_have_no_findings(tmp_path: Path) -> None:
    for partition in ("sums-0", "sums-1"):
        segment(
            tmp_path,
            partition,
            *(written(b"a", 0, epoch=1), written(b"x", 1, epoch=4, producer_id=8), marker("commit", 2, epoch=2)),
            *(marker("abort", 3, epoch=5, producer_id=8), marker("abort", 4, epoch=9, producer_id=9)),
        )
    assert faults(tmp_path) == []
