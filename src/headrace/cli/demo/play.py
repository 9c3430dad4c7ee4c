"""Plays the year into the topic: one day every so often, or as fast as it goes.

A thread of its own with a client of its own. `pause_at` holds the play until `go_on()`: the fast play waits there for
the kill, so that there is something left to do after it.
"""

from __future__ import annotations

import threading
import time

from headrace.cli.demo.flights import FlightYear

__all__ = ["DAY_SECONDS", "Play"]

DAY_SECONDS = 0.25


class Play:
    """Mutable: what was sent so far. `error` is set when the play ended by one."""

    def __init__(
        self, year: FlightYear, *, bootstrap_servers: str, topic: str, day_seconds: float, pause_at: int | None = None
    ) -> None:
        self.sent = 0
        self.date = year.days[0].date
        self.worst: tuple[str, float] | None = None
        self.error: BaseException | None = None
        self._year = year
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._day_seconds = day_seconds
        self._pause_at = pause_at
        self._go_on = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-demo-play", daemon=True)

    @property
    def total(self) -> int:
        return self._year.flights

    @property
    def over(self) -> bool:
        """Whether the whole year was sent and acknowledged."""
        return self.sent == self.total and not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        self._go_on.set()

    def stop(self) -> None:
        self._stop.set()
        self._go_on.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 - handed to the demo's own thread, which ends by it
            self.error = error

    def _play(self) -> None:
        import pyarrow as pa

        from headrace.client.network_client import NetworkClient
        from headrace.client.producer import Producer

        with NetworkClient(self._bootstrap_servers, client_id="headrace-demo-play") as client:
            producer = Producer(client, compression="lz4")
            began = time.monotonic()
            for number, day in enumerate(self._year.days):
                if self._stop.is_set():
                    return
                self._hold()
                values = pa.array(day.values, type=pa.binary())
                producer.send(self._topic, None, None, values, timestamps_ms=int(time.time() * 1000))
                producer.flush()
                self._note(day.date, len(day.values), day.delay_minutes)
                if self._day_seconds:
                    # Behind the pace, no pause: the play catches up by itself.
                    self._stop.wait(max(0.0, began + (number + 1) * self._day_seconds - time.monotonic()))

    def _hold(self) -> None:
        if self._pause_at is not None and self.sent >= self._pause_at:
            self._go_on.wait()

    def _note(self, date: str, flights: int, delay_minutes: float) -> None:
        self.sent += flights
        self.date = date
        late = delay_minutes / flights
        if self.worst is None or late > self.worst[1]:
            self.worst = (date, late)
