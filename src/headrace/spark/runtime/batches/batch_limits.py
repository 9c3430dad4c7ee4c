"""How much a micro-batch may take: records and bytes per task, so that it lasts about as long as it should. Pure.

Back-pressure by feedback, as nothing is known beforehand of what a record costs. A batch that took longer than the
target makes the next ones smaller in proportion; one that was full and quick makes them larger, by ten times at most.
Subtopologies share the cores of an instance: how long a batch takes is also how long another one waits for a core.

The fixed cost of a batch (planning, scheduling, commits) is measured separately. Otherwise a slow machine would shrink
batches until they consist of overhead only: work gets at least as much time as the overhead takes. Part of it hides in
the stages (stores, round trips, waiting for a core that others use too); it shows when batches of different sizes take
about as long, and then counts as overhead as well. Records and bytes shrink and grow in the same proportion: a
partition of large records is bounded by bytes, and takes no records away from the others. No limit is below one record,
and one of bytes ends a fetch behind its first records, never before: a large record does not starve its partition.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchLimits", "BatchMeasure"]

FIRST_RECORDS = 2_000  # what a record costs is not known yet
LARGEST_STEP = 10.0
TELLING = 4.0  # a batch whose work took a quarter of what it may tells what a record costs
FULL = 0.9  # a batch that took so much of its limit says what a larger one would take
STEADY = 0.2  # nearness to the target at which nothing changes
REMEMBERED = 0.7  # of the overhead told by earlier batches
UNLIKE = 2.0  # sizes that differ so much tell what a record costs and what a batch costs
FORGOTTEN = 8  # batches of one size after which an earlier one is no measure any more
MOST_HIDDEN = 0.6  # of the time in stages that is believed to have nothing to do with records


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasure:
    """Figures of one completed micro-batch. `largest_records` and `largest_bytes` are those of the fullest task."""

    largest_records: int
    largest_bytes: int = 0
    spent_ms: float
    overhead_ms: float = 0.0  # of `spent_ms`, what it costs without records
    succeeded: bool = True


class BatchLimits:
    """Feedback controller for the size of one subtopology's micro-batches. Mutable.

    Args:
        most_records: Maximum records per task, from the settings.
        most_bytes: Maximum bytes per task, from the settings.
        target_ms: Intended duration of a batch.
        deadline_ms: 0, or the time after which a batch is useless (a third of its transaction's timeout). A batch that
            comes near it shrinks whatever the target is.
        bytes_end_fetches: False if several chains read the same range. None of them may then end before the others, and
            the limit of bytes is enforced by a limit of records.
    """

    def __init__(
        self,
        *,
        most_records: int,
        most_bytes: int,
        target_ms: int,
        deadline_ms: float = 0,
        bytes_end_fetches: bool = True,
    ) -> None:
        self._most_records, self._most_bytes = most_records, most_bytes
        self._target_ms = min(target_ms, deadline_ms / 2) if deadline_ms else float(target_ms)
        self._deadline_ms = deadline_ms
        self._bytes_end_fetches = bytes_end_fetches
        self._record_bytes = 0.0
        self._overhead_ms: float | None = None
        self._hidden_ms = 0.0  # of the time in stages, what a batch costs without records
        self._earlier: tuple[float, float] | None = None  # share taken and time in stages of a batch before
        self._alike = 0  # batches since then that were about as large
        self._share = min(1.0, FIRST_RECORDS / most_records)

    @property
    def records(self) -> int:
        """Records per task, at least one."""
        allowed = self._most_records * self._share
        if self._record_bytes and not self._bytes_end_fetches:
            allowed = min(allowed, self.bytes / self._record_bytes)
        return max(1, int(allowed))

    @property
    def bytes(self) -> int:
        """Bytes per task, at least one."""
        return max(1, int(self._most_bytes * self._share))

    def is_too_late(self, spent_ms: float) -> bool:
        """Whether a batch that took so long missed its deadline."""
        return 0 < self._deadline_ms < spent_ms

    def update(self, batch: BatchMeasure) -> None:
        """Adjust the limits to a completed batch."""
        if not batch.succeeded:
            self._shrink_after_failure(batch)
            return
        if batch.largest_records:
            self._record_bytes = batch.largest_bytes / batch.largest_records
        # 1. Split the time: overhead that was measured, the part of the stages that does not depend on records, and
        #    work. The overhead is smoothed, because one slow batch does not make a slow machine.
        taken = self._taken(batch)
        overhead_ms = batch.overhead_ms + self._hidden(taken, batch.spent_ms - batch.overhead_ms)
        known = self._overhead_ms if self._overhead_ms is not None else overhead_ms
        self._overhead_ms = REMEMBERED * known + (1 - REMEMBERED) * overhead_ms
        work_ms = max(1.0, batch.spent_ms - overhead_ms)
        # 2. Work is assumed to be proportional to the share taken; `ratio` is the factor that meets the target.
        ratio = self._work_ms / work_ms
        # What is left of a share below a whole record cannot be taken.
        is_full = taken >= FULL * self._share or batch.largest_records >= self.records
        fitting = taken * ratio
        # 3. Missed deadline: half of the deadline, whatever the target is. The transaction would be aborted by its
        #    timeout, and a repetition of the same size would be, too.
        if self.is_too_late(batch.spent_ms) and work_ms > overhead_ms:  # else fewer records would change nothing
            fitting = min(fitting, taken * self._deadline_ms / 2 / batch.spent_ms)
            self._share = min(self._share, fitting)
        # 4. A batch below the limit predicts larger ones only if its work took a good part of the target
        #    (TELLING). Then the limit shrinks to what would fit, before a backlog meets it.
        elif not is_full and ratio < TELLING:
            self._share = min(self._share, fitting)
        # 5. A full batch is a measurement. The dead band (STEADY) avoids oscillation; growth is bounded, because an
        #    extrapolation of more than ten times is a guess.
        elif is_full and abs(ratio - 1) > STEADY:
            self._share = min(1.0, self._share * min(ratio, LARGEST_STEP))
        self._share = max(self._share, 1 / self._most_records)

    def _hidden(self, taken: float, stages_ms: float) -> float:
        """The part of the time in stages that this batch would have taken without records."""
        # A line through two batches of different sizes: its slope is the cost of records, its value at size zero the
        # hidden overhead. Two batches of similar size would give a slope of pure noise, hence UNLIKE; an old
        # measurement describes another load, hence FORGOTTEN.
        share, ms = self._earlier or (taken, stages_ms)
        if max(taken, share) >= UNLIKE * min(taken, share) > 0:
            slope = max(0.0, (stages_ms - ms) / (taken - share))
            found = max(0.0, min(stages_ms, ms) - slope * min(taken, share))
            self._hidden_ms = (self._hidden_ms + found) / 2
            self._earlier = (taken, stages_ms)
        elif self._earlier is None or self._alike >= FORGOTTEN:
            self._earlier = (taken, stages_ms)
        self._alike = 0 if self._earlier == (taken, stages_ms) else self._alike + 1
        return min(self._hidden_ms, MOST_HIDDEN * stages_ms)

    @property
    def _work_ms(self) -> float:
        """Return the time for the records: the rest of the target, and at least as much as the overhead."""
        overhead = self._overhead_ms or 0.0
        wanted = max(self._target_ms - overhead, overhead)
        return min(wanted, self._deadline_ms / 2) if self._deadline_ms else wanted

    def _taken(self, batch: BatchMeasure) -> float:
        """Return the share of the limits that the batch used, without the excess of a single fetch or record."""
        taken = max(batch.largest_records / self._most_records, batch.largest_bytes / self._most_bytes)
        return min(taken, self._share)

    def _shrink_after_failure(self, batch: BatchMeasure) -> None:
        """Reduce the limits after a batch that failed late. Fast failures have other reasons than its size."""
        if self._deadline_ms and batch.spent_ms > self._deadline_ms and batch.largest_records:
            fitting = self._taken(batch) * self._deadline_ms / 2 / batch.spent_ms
            self._share = max(min(self._share, fitting), 1 / self._most_records)
