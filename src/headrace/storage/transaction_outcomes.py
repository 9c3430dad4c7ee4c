"""How the transactions in a stretch of a log ended, from batch headers and markers alone.

A marker decides all batches its producer wrote since the last one. The cleaner drops records of aborted transactions
and must not take one of them for a key's latest value; a marker may go once no record of its transaction is left.
"""

from __future__ import annotations

from bisect import bisect_left

from headrace.protocol.batch_headers import BatchHeader, control_type

__all__ = ["TransactionOutcomes"]


class TransactionOutcomes:
    """Mutable: `note` all headers of the stretch in order, then ask."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}

    def note(self, batch: bytes, header: BatchHeader) -> None:
        """`batch` holds one whole batch when it is a control batch; for others it is not looked at."""
        if not header.is_transactional:
            return
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
            return
        outcome = control_type(batch, header._replace(position=0))
        if outcome == "other":
            return
        first = self._open.pop(header.producer_id, None)
        if outcome == "abort" and first is not None:
            firsts, markers = self._aborted.setdefault(header.producer_id, ([], []))
            firsts.append(first)
            markers.append(header.base_offset)

    @property
    def first_undecided_offset(self) -> int:
        """Where the oldest transaction without a marker begins; beyond every offset when there is none."""
        return min(self._open.values(), default=2**63 - 1)

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the records of this batch never counted."""
        if not header.is_transactional or header.is_control:
            return False
        firsts, markers = self._aborted.get(header.producer_id, ([], []))
        at = bisect_left(markers, header.base_offset)
        return at < len(markers) and firsts[at] <= header.base_offset
