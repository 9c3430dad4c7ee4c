"""Which transactions in a fetched stretch of a log were aborted: the list that goes with a read_committed answer.

A fetch of committed records ends at the last stable offset, so whatever it holds is decided by a marker before that.
Markers behind the stretch are searched forward, and remembered for the reader that comes next; where the stretch holds
no transactional batch nothing is searched at all. Kafka keeps `.txnindex` files for the same purpose.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock.broker.partition_logs import LogView
from penstock.protocol.record_batches import control_type, iter_batch_headers

__all__ = ["AbortedTransactions"]

READ_BYTES = 1 << 20
MOST_LOGS = 10_000

Markers = dict[int, list[tuple[int, bool]]]


class _Searched:
    """Markers of one stretch of one log, by producer id: (offset, whether it aborts). Mutable: the stretch grows."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.markers: Markers = {}

    def covers(self, offset: int) -> bool:
        return self.start <= offset <= self.end

    def grow(self, log: LogView) -> bool:
        """One read further. False at the last stable offset."""
        data = log.read(self.end, READ_BYTES, end_offset=log.last_stable_offset)
        before = self.end
        for header in iter_batch_headers(data):
            if header.is_control and header.base_offset >= self.end:
                aborts = control_type(data, header) == "abort"
                self.markers.setdefault(header.producer_id, []).append((header.base_offset, aborts))
            self.end = max(self.end, header.next_offset)
        return self.end > before

    def outcome(self, producer_id: int, offset: int, log: LogView) -> bool:
        """Whether the transaction that wrote at `offset` was aborted."""
        while True:
            markers = self.markers.get(producer_id, [])
            at = bisect_left(markers, (offset, False))
            if at < len(markers):
                return markers[at][1]
            if not self.grow(log):
                return False


class AbortedTransactions:
    """Mutable: what was searched of each log."""

    def __init__(self) -> None:
        self._searched: dict[object, _Searched] = {}

    def within(self, key: object, log: LogView, records: bytes) -> list[tuple[int, int]]:
        """(producer id, offset of its first batch here) of each aborted transaction in `records`, which were read from
        the log below its last stable offset. `key` names the log. Raises ReadRefused."""
        aborted: list[tuple[int, int]] = []
        skipped: set[int] = set()
        for header in iter_batch_headers(records):
            if not header.is_transactional:
                continue
            if header.is_control:
                skipped.discard(header.producer_id)
                continue
            if header.producer_id in skipped:
                continue
            searched = self._searched_from(key, header.base_offset)
            if searched.outcome(header.producer_id, header.base_offset, log):
                aborted.append((header.producer_id, header.base_offset))
                skipped.add(header.producer_id)
        return aborted

    def _searched_from(self, key: object, offset: int) -> _Searched:
        known = self._searched.pop(key, None)
        if known is None or not known.covers(offset):
            known = _Searched(offset)
        self._searched[key] = known
        if len(self._searched) > MOST_LOGS:
            del self._searched[next(iter(self._searched))]
        return known
