"""Resident slots on the executors of a cluster, seen from the driver: they come, are lost, and are started again.

Each slot is a Spark job of its own that a thread keeps running. Spark decides where; the slot's hello names its site
(`executor_site`), and tasks are bound to it only then (`machine.placement`). A slot is lost when one of its links ends
or is silent for a lease, or when its job ends. The machine hears of it first, and a micro-batch that waits for the slot
fails after that. What a lost slot still does counts for nothing: it writes with a producer epoch that the driver fences
before the same records are processed again, and only the driver commits.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.spark.cluster_masters import LEASE_S
from headrace.spark.machine.events import SlotHello, SlotLost
from headrace.spark.runtime.batches.stage_reports import error_of
from headrace.spark.runtime.slots.executor_site import ExecutorSite
from headrace.spark.runtime.slots.resident_chains import ResidentChains
from headrace.spark.runtime.slots.resident_stage import ClusterEnd, SlotEnd
from headrace.spark.runtime.slots.slot_link import BEAT_S, LinkAddress, LinkClosed, SlotLink, SlotListener
from headrace.spark.runtime.spark_errors import reason_of

__all__ = ["ClusterSlots", "Seat"]

log = logging.getLogger("headrace.spark")

SILENCE_S = 3 * LEASE_S  # then a slot ends by itself: later than the driver gives it up
GRACE_S = 3.0  # for Spark to end the job of a lost slot with its reason
ENDING_S = 10.0
LASTED_S = 30.0  # a slot that ran so long is started again at once
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0

SlotReport = Callable[[SlotHello | SlotLost], None]


@dataclass(slots=True)
class Seat:
    """One start of one slot. Mutable; its fields belong to `ClusterSlots` and its lock."""

    slot: int
    launch: int
    ends: frozenset[str]  # that say hello
    links: dict[str, SlotLink] = field(default_factory=dict)
    stores: frozenset[int] | None = None  # tasks, once it said so
    is_live: bool = False  # all ends are linked, nothing is lost
    is_lost: bool = False
    is_leaving: bool = False  # reported as lost, and finishes its micro-batch
    since_s: float = 0.0
    said: list[HeadraceError] = field(default_factory=list)  # errors of its stages
    error: BaseException | None = None  # Spark's
    job_ended: threading.Event = field(default_factory=threading.Event)
    # None follows the last message.
    answers: queue.SimpleQueue[dict[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    restored: queue.SimpleQueue[dict[str, Any] | None] = field(default_factory=queue.SimpleQueue)

    @property
    def site(self) -> tuple[str, str]:
        """Id and boot id of the site."""
        hello = next(iter(self.links.values())).hello
        return str(hello.get("site")), str(hello.get("boot"))

    @property
    def plans_to(self) -> SlotLink:
        """The link that takes plans."""
        return self.links["whole" if "whole" in self.ends else "first"]

    def describe(self) -> str:
        """Return host and executor."""
        hello = self.plans_to.hello
        return f"{hello.get('host') or '?'}, executor {hello.get('executor') or '?'}"


class ClusterSlots:
    """Slots of one subtopology. Mutable, any thread; `_lock` guards the seats."""

    def __init__(
        self,
        spark: SparkSession,
        chains: ResidentChains,
        slots: int,
        *,
        name: str,
        group: str,
        description: str,
        site: ExecutorSite,
        listen_on: str,
        reached_at: str,
    ) -> None:
        """Start the slots.

        Args:
            spark: The session.
            chains: What each slot runs: one chain.
            slots: How many.
            name: Of the subtopology, whose scheduler pool the jobs run in.
            group: Spark job group.
            description: Of the application, for Spark's screens.
            site: Where each slot keeps its stores.
            listen_on: Address that the driver listens on.
            reached_at: Host name or address that executors connect to.
        """
        self._spark, self._chains, self._site = spark, chains, site
        self._name, self._group, self._description = name, group, description
        self._listener = SlotListener(listen_on)
        self._address: LinkAddress = (reached_at, self._listener.address[1])
        self._lock = threading.Condition()
        self._seats: dict[int, Seat] = {}
        self._report: SlotReport | None = None
        self._closing = threading.Event()
        self.last_error: BaseException | None = None  # of a slot that never said hello
        self.failed_starts = 0  # since a slot said hello
        self._threads = [
            threading.Thread(
                target=inheritable_thread_target(spark)(self._keep), args=(slot,), name=f"headrace-{name}-{slot}"
            )
            for slot in range(slots)
        ]
        served = threading.Thread(target=self._listener.serve, args=(self._take,), name=f"headrace-{name}-link")
        beats = threading.Thread(target=self._beat, name=f"headrace-{name}-beats")
        for thread in (served, beats, *self._threads):
            thread.daemon = True
            thread.start()

    # -- views --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._threads)

    def watch(self, report: SlotReport) -> None:
        """Report every slot that comes or is lost, beginning with those that are here."""
        with self._lock:
            self._report = report
            live = [seat for seat in self._seats.values() if seat.is_live]
            if live:
                report(_hello(live))

    def live(self) -> dict[int, Seat]:
        """Return the slots that run, also those that finish their last micro-batch."""
        with self._lock:
            return {slot: seat for slot, seat in sorted(self._seats.items()) if seat.is_live or seat.is_leaving}

    @property
    def is_short(self) -> bool:
        """Whether some of the slots do not run."""
        return not self._closing.is_set() and len(self.live()) < len(self)

    def await_change(self, timeout_s: float) -> None:
        """Wait until a slot comes or is lost."""
        with self._lock:
            self._lock.wait(timeout_s)

    # -- the end of one slot ------------------------------------------------------------------------------------------

    def give_up_one(self) -> None:
        """Report the newest slot as lost, and keep it until `end_leaving`. It waits for a core then like any other."""
        with self._lock:
            live = [seat for seat in self._seats.values() if seat.is_live]
            if not live or self._closing.is_set():
                return
            seat = max(live, key=lambda seat: seat.since_s)
            # The machine places the tasks anew when the micro-batch has ended. A plan that it has made before still
            # names the slot.
            seat.is_live, seat.is_leaving = False, True
            if self._report is not None:
                self._report(SlotLost(slots=(seat.slot,)))
        log.info("%s: slot %d on %s is given up: others wait for a core", self._name, seat.slot, seat.describe())

    def end_leaving(self) -> None:
        """End slots that were given up."""
        with self._lock:
            links = [link for seat in self._seats.values() if seat.is_leaving for link in seat.links.values()]
        for link in links:  # whose end is noticed by `_take`
            link.close()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all slots: each finishes the micro-batch that it runs."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._listener.close()
        with self._lock:
            self._report = None
            seats = list(self._seats.values())
        for seat in seats:
            for link in list(seat.links.values()):
                link.close()
        # Slots that never said hello have no link that could end them.
        for seat in seats:
            if not seat.is_live:
                self._cancel(seat)
        deadline = time.monotonic() + ENDING_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            log.warning("%s: slots did not end within %d s; cancelling their jobs", self._name, ENDING_S)
            for seat in seats:
                self._cancel(seat)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _keep(self, slot: int) -> None:
        """Keep the job of a slot running, until `close`."""
        pause_s = FIRST_PAUSE_S
        launch = 0
        while not self._closing.is_set():
            launch += 1
            ends = {"whole"} if not self._chains.has_sql else {"first", "last"}
            restores = {"restore"} if self._chains.restore is not None else set()
            seat = Seat(slot=slot, launch=launch, ends=frozenset(ends | restores))
            with self._lock:
                self._seats[slot] = seat
            try:
                self._run(seat)
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for the slot
                seat.error = error
            seat.job_ended.set()
            lasted_s = time.monotonic() - seat.since_s if seat.since_s else 0.0
            self._lose(seat, "its Spark job ended" + (f": {reason_of(seat.error)[:300]}" if seat.error else ""))
            pause_s = FIRST_PAUSE_S if lasted_s > LASTED_S else min(2 * pause_s, LONGEST_PAUSE_S)
            self._closing.wait(pause_s)

    def _run(self, seat: Seat) -> None:
        cluster = ClusterEnd(site=self._site, launch=seat.launch, silence_s=SILENCE_S, restore=self._chains.restore)
        end = SlotEnd(chain=0, slot=seat.slot, address=self._address, token=self._listener.token, cluster=cluster)
        (chain,) = self._chains.build(end)
        context = self._spark.sparkContext
        # Of this thread only: each has a JVM thread of its own.
        context.setLocalProperty("spark.scheduler.pool", self._name)
        context.setJobGroup(self._group, f"{self._description} {self._name}: slot {seat.slot}", interruptOnCancel=True)
        context.clearJobTags()
        context.addJobTag(self._tag(seat))
        chain.plan.collect()

    def _cancel(self, seat: Seat) -> None:
        if seat.job_ended.is_set():
            return
        try:
            self._spark.sparkContext.cancelJobsWithTag(self._tag(seat))
        except Exception as error:  # noqa: BLE001 - a stopped session raises many kinds of errors here
            log.debug("%s: the job of slot %d was not cancelled: %s", self._name, seat.slot, error)

    def _tag(self, seat: Seat) -> str:
        return f"{self._group}-{seat.slot}-{seat.launch}".replace(",", "-")

    # -- links --------------------------------------------------------------------------------------------------------

    def _take(self, name: str, link: SlotLink) -> None:
        """Take the link of a new connection, and read it to its end. Runs in a thread of its own."""
        seat, end = self._seat_of(name)
        with self._lock:
            # A hello of an earlier start: a slot that was cut off and is given up already.
            if seat is None or end in seat.links or seat.is_lost or self._closing.is_set():
                link.close()
                return
            seat.links[end] = link
        self._on_linked(seat)
        heard_s = time.monotonic()
        while (message := link.receive(within_s=LEASE_S)) is not None:
            heard_s = time.monotonic()
            if "beat" not in message:
                self._on_message(seat, end, message)
        silent = time.monotonic() - heard_s >= LEASE_S
        why = f"its host was silent for {LEASE_S:.0f} s" if silent else "its link closed"
        self._lose(seat, why, at_once=silent)

    def _seat_of(self, name: str) -> tuple[Seat | None, str]:
        try:
            _, slot, end, launch = name.split(".")
            seat = self._seats.get(int(slot))
        except ValueError:
            return None, ""
        return (seat if seat is not None and str(seat.launch) == launch and end in seat.ends else None), end

    def _on_message(self, seat: Seat, end: str, message: Mapping[str, Any]) -> None:
        match message:
            case {"stores": stores}:
                seat.stores = (seat.stores or frozenset()) | frozenset(map(int, stores))
                self._on_linked(seat)
            case {"error": facts}:
                seat.said.append(error_of(facts))
            case _:
                (seat.restored if end == "restore" else seat.answers).put(dict(message))

    def _on_linked(self, seat: Seat) -> None:
        """Report a slot whose ends are all here."""
        with self._lock:
            if seat.is_live or seat.is_lost or seat.links.keys() != seat.ends or seat.stores is None:
                return
            refusal = self._refusal(seat)
            if refusal is None:
                seat.is_live, seat.since_s, self.failed_starts = True, time.monotonic(), 0
                log.info("%s: slot %d runs on %s", self._name, seat.slot, seat.describe())
                if self._report is not None:
                    self._report(_hello([seat]))
                self._lock.notify_all()
        if refusal is not None:
            self._lose(seat, refusal, at_once=True)

    def _refusal(self, seat: Seat) -> str | None:
        """Return why a slot must not run; None if it may."""
        site, boot = seat.site
        if any(link.hello.get("site") != site for link in seat.links.values()):
            return "its ends are at different sites"
        others = [other for other in self._seats.values() if other.is_live and other.site[0] == site]
        if any(other.site[1] != boot for other in others):
            return (
                "its state directory is that of another host, too; set HEADRACE_EXECUTOR_STATE_DIR to a local disk of "
                "each host"
            )
        return None

    def _lose(self, seat: Seat, why: str, *, at_once: bool = False) -> None:
        """Give up a slot. Its job is cancelled unless Spark ends it with a reason of its own."""
        with self._lock:
            was_live, was_leaving, was_lost = seat.is_live, seat.is_leaving, seat.is_lost
            seat.is_live, seat.is_leaving, seat.is_lost = False, False, True
            # 1. Reported to the machine before a micro-batch that waits for the slot fails: behind it, tasks are placed
            #    anew.
            if was_live and self._report is not None:
                self._report(SlotLost(slots=(seat.slot,)))
            if not was_lost and not was_live and not was_leaving and not self._closing.is_set():
                self.failed_starts += 1
                self.last_error = seat.said[0] if seat.said else seat.error
            self._lock.notify_all()
        if was_lost:
            return
        if was_live and not self._closing.is_set():
            log.warning("%s: slot %d on %s is lost: %s", self._name, seat.slot, seat.describe(), why)
        for link in list(seat.links.values()):
            link.close()
        seat.answers.put(None)
        seat.restored.put(None)
        # 2. A host that is cut off keeps its job for `spark.network.timeout`, two minutes.
        if (
            not seat.job_ended.is_set()
            and not self._closing.is_set()
            and not (not at_once and seat.job_ended.wait(GRACE_S))
        ):
            self._cancel(seat)

    def _beat(self) -> None:
        """Send beats to all slots: a slot whose driver is gone ends."""
        while not self._closing.wait(BEAT_S):
            with self._lock:
                seats = [seat for seat in self._seats.values() if not seat.is_lost]
            # Also to a slot that waits for its other ends.
            for seat in seats:
                for end, link in list(seat.links.items()):
                    if end != "last":  # reads nothing; it ends with the end of its input
                        with contextlib.suppress(LinkClosed):
                            link.beat()


def _hello(seats: Iterable[Seat]) -> SlotHello:
    stores = {seat.slot: seat.stores or frozenset() for seat in seats}
    return SlotHello(slots=tuple(stores), stores=stores)
