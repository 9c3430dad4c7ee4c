"""Random histories of the parallel consumer's rules: polls, handlers, failures, rebalances, crashes, lost commits.

At every step: no commit lies past an unfinished record, nor names one as finished; a lane has one record at a time with
handlers, in order; buffers and repeats are bounded. At the end everything was finished, and nothing was repeated
but what a crash or a late end may repeat.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.consumer.consumer_types import ConsumerRecord, TopicPartition
from headrace.client.parallel.offset_tracker import LONGEST_TEXT, decode_finished
from headrace.client.parallel.work import Failure, Retry, Work
from headrace.client.parallel.work_plan import Snapshots, WorkPlan

STEPS = 250
BUFFER = 25


class History:
    """Mutable: logs, a plan that may crash, handlers that hold work, commits on their way, and what must hold."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.order = random.choice(["key", "partition", "none"])
        self.batch_size = random.choice([1, 1, 3])
        self.repeat_limit = random.choice([None, None, 1, 5])
        self.now_ms = 0
        self.logs = {TopicPartition("t", number): self.new_log() for number in range(random.randint(1, 3))}
        self.by_place = {(p, record.offset): record for p, log in self.logs.items() for record in log}
        self.finished: dict[tuple[TopicPartition, int], int] = {}
        self.durable: dict[TopicPartition, tuple[int, str]] = {}
        self.may_repeat: dict[tuple[TopicPartition, int], int] = {}
        self.start()

    def new_log(self) -> list[ConsumerRecord]:
        number = getattr(self, "logs_made", 0)
        self.logs_made = number + 1
        offset, log = self.random.choice([0, 7]), []
        for _ in range(self.random.randint(0, 60)):
            key = self.random.choice([b"a", b"b", b"c", None])
            log.append(ConsumerRecord("t", number, offset, key, b"v", (), 0, 0))
            offset += self.random.choice([1, 1, 1, 2, 40_000])
        return log

    def start(self) -> None:
        """A new process begins with what is durable."""
        self.plan = WorkPlan(
            order=self.order,  # type: ignore[arg-type]
            batch_size=self.batch_size,
            buffer_records=BUFFER,
            retry=Retry(attempts=3, first_delay=0.05),
            repeat_limit=self.repeat_limit,
        )
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.handlers: list[Work] = []
        self.commits: list[Snapshots] = []
        self.last_ended: dict[tuple[TopicPartition, bytes | None], int] = {}

    # Steps.

    def assign(self) -> None:
        for partition in self.logs:
            if partition not in self.positions and self.random.random() < 0.6:
                committed = self.durable.get(partition)
                self.plan.assign(partition, committed)
                self.positions[partition] = 0 if committed is None else committed[0]
                self.last_ended = {lane: at for lane, at in self.last_ended.items() if lane[0] != partition}

    def poll(self) -> None:
        pause, resume = self.plan.update_paused()
        self.paused = (self.paused | set(pause)) - set(resume)
        room = self.plan.room()
        found: list[ConsumerRecord] = []
        for partition, position in self.positions.items():
            if partition in self.paused:
                continue
            rest = [record for record in self.logs[partition] if record.offset >= position]
            taken = rest[: self.random.randint(0, max(0, room - len(found)))]
            found += taken
            if taken:
                self.positions[partition] = taken[-1].offset + 1
            elif not rest and self.logs[partition]:
                self.positions[partition] = self.logs[partition][-1].offset + 3  # markers at the end
        self.plan.add_records(found, self.positions)
        assert self.plan.held <= BUFFER

    def begin(self) -> None:
        work = self.plan.take(self.now_ms)
        if work is None:
            return
        assert 1 <= len(work.records) <= self.batch_size
        for record in work.records:
            lane = self.lane_of(record)
            if lane is not None:
                assert not any(self.lane_of(r) == lane for w in self.handlers for r in w.records), "two of one lane"
                assert record.offset > self.last_ended.get(lane, -1), "out of order"
        self.handlers.append(work)

    def lane_of(self, record: ConsumerRecord) -> tuple[TopicPartition, bytes | None] | None:
        partition = TopicPartition(record.topic, record.partition)
        if self.order == "partition":
            return partition, None
        return (partition, record.key) if self.order == "key" and record.key is not None else None

    def end(self) -> None:
        if not self.handlers:
            return
        work = self.handlers.pop(self.random.randrange(len(self.handlers)))
        if self.random.random() < 0.25:
            failure = Failure(why="it happens", worth_retrying=self.random.random() < 0.8)
            verdict = self.plan.fail_attempt(work, failure, now_ms=self.now_ms, chance=self.random.random())
            if verdict != "give-up":
                return
        if self.plan.finish(work):
            self.count(work)
        else:
            self.count_late(work)

    def count_late(self, work: Work) -> None:
        """Its side effects happened, and the partition's next owner has them again."""
        for record in work.records:
            self.repeat(work.partition, record.offset)
            self.count_one(work.partition, record.offset)

    def count(self, work: Work) -> None:
        for record in work.records:
            self.count_one(work.partition, record.offset)
            lane = self.lane_of(record)
            if lane is not None and work.partition in self.positions:
                self.last_ended[lane] = record.offset

    def count_one(self, partition: TopicPartition, offset: int) -> None:
        self.finished[partition, offset] = self.finished.get((partition, offset), 0) + 1

    def repeat(self, partition: TopicPartition, offset: int) -> None:
        self.may_repeat[partition, offset] = self.may_repeat.get((partition, offset), 0) + 1

    def snapshot(self) -> None:
        found = self.plan.take_snapshots()
        if found:
            self.commits.append(found)

    def commit_arrives(self) -> None:
        if not self.commits:
            return
        snapshots = self.commits.pop(0)  # commits of one member arrive in order
        stored = self.random.random() < 0.8
        if stored:
            self.store(snapshots)
        self.plan.complete_commit(snapshots, durable=stored)

    def store(self, snapshots: Snapshots) -> None:
        for partition, (_, snapshot) in snapshots.items():
            assert len(snapshot.metadata) <= LONGEST_TEXT
            runs = decode_finished(snapshot.offset, snapshot.metadata, None)
            assert runs is not None
            for record in self.logs[partition]:
                told = record.offset < snapshot.offset or any(a <= record.offset < b for a, b in runs)
                assert not told or (partition, record.offset) in self.finished, "committed and not finished"
            self.durable[partition] = (snapshot.offset, snapshot.metadata)

    def revoke(self) -> None:
        gone = [each for each in self.positions if self.random.random() < 0.4]
        self.plan.start_revoking(gone)
        if self.random.random() < 0.7:  # drained; else the time was up
            for work in [work for work in self.handlers if work.partition in gone]:
                self.handlers.remove(work)
                if self.plan.finish(work):
                    self.count(work)
                else:
                    self.count_late(work)
        while self.commits:  # none may come after its partition was given back
            self.commit_arrives()
        last = self.plan.take_snapshots(gone)
        self.store(last)
        self.plan.complete_commit(last, durable=True)
        self.plan.release(gone)
        for partition in gone:
            del self.positions[partition]
            self.paused.discard(partition)

    def lose(self) -> None:
        gone = [each for each in self.positions if self.random.random() < 0.5]
        self.may_be_repeated(gone)
        self.plan.release(gone)
        for partition in gone:
            del self.positions[partition]
            self.paused.discard(partition)
        kept: list[Snapshots] = []
        for snapshots in self.commits:  # those on their way are refused
            kept.append({p: found for p, found in snapshots.items() if p not in gone})
            self.plan.complete_commit({p: found for p, found in snapshots.items() if p in gone}, durable=False)
        self.commits = kept

    def crash(self) -> None:
        """kill -9: at most what was in flight or not committed is repeated, and the limit bounds that."""
        not_told = self.may_be_repeated(list(self.positions))
        if self.repeat_limit is not None:
            assert self.plan.begun + not_told <= self.repeat_limit
        assert not_told <= self.plan.uncommitted
        self.start()

    def may_be_repeated(self, partitions: list[TopicPartition]) -> int:
        count = 0
        for partition in partitions:
            offset, metadata = self.durable.get(partition, (0, ""))
            runs = decode_finished(offset, metadata, None) or ()
            for record in self.logs[partition]:
                told = record.offset < offset or any(a <= record.offset < b for a, b in runs)
                times = self.finished.get((partition, record.offset), 0)
                if not told and times > self.may_repeat.get((partition, record.offset), 0):
                    count += 1
                    self.repeat(partition, record.offset)
        return count

    def sleep(self) -> None:
        self.now_ms += self.random.choice([10, 100])

    def play(self) -> None:
        steps = [
            (self.assign, 3),
            (self.poll, 15),
            (self.begin, 40),
            (self.end, 35),
            (self.snapshot, 6),
            (self.commit_arrives, 8),
            (self.sleep, 10),
            (self.revoke, 1.5),
            (self.lose, 0.7),
            (self.crash, 0.7),
        ]
        for _ in range(STEPS):
            (step,) = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])
            step()
            self.check()
        self.finish()

    def check(self) -> None:
        plan = self.plan
        assert 0 <= plan.held <= BUFFER
        assert plan.held_bytes >= 0
        assert (plan.held == 0) == (plan.held_bytes == 0)
        assert plan.uncommitted >= 0
        assert plan.begun >= sum(len(work.records) for work in plan.in_flight()) >= 0
        assert plan.late() + len(plan.in_flight()) == len(self.handlers)
        if self.repeat_limit is not None:
            assert plan.begun + plan.uncommitted <= max(self.repeat_limit, 1)

    def finish(self) -> None:
        """Nobody disturbs any more: everything comes to its end."""
        for _ in range(3_000):
            self.assign()
            self.poll()
            self.begin()
            self.begin()
            if self.handlers:
                work = self.handlers.pop(0)
                if self.plan.finish(work):
                    self.count(work)
                else:
                    self.count_late(work)
            self.now_ms += 20
            self.snapshot()
            self.commit_arrives()
            if len(self.finished) == len(self.by_place) and not self.handlers and not self.plan.held:
                break
        while self.commits or self.plan.take_snapshots():
            self.snapshot()
            self.commit_arrives()
        assert self.finished.keys() == self.by_place.keys(), "a record was lost"
        for place, times in self.finished.items():
            assert times <= 1 + self.may_repeat.get(place, 0), "repeated without a reason"
        assert self.plan.held == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 40))
def test_random_histories(seed: int) -> None:
    History(seed).play()
