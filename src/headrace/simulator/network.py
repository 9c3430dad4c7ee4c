"""Connections between applications and the broker: in order while they last; requests and answers may be late, get
lost or arrive twice.

A request that got lost and one whose answer got lost look the same to who sent it: no answer until the time-out, or a
broken connection at once. What was sent over a connection that broke may have arrived before it broke, never after the
next connection's first request: that is what TCP and Kafka's one-request-at-a-time members give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from headrace.simulator.event_queue import EventQueue

__all__ = ["Answer", "Connection", "NetworkConditions"]

# Shorter than Kafka's 30 s, so that time-outs happen within 25 s of chaos; sessions and intervals are scaled down with
# it.
REQUEST_TIMEOUT_MS = 2_000

Answer = Callable[[object | None], None]
"""Takes the response to one request; None: the broker is away, or went away before it answered."""


@dataclass(slots=True, kw_only=True)
class NetworkConditions:
    """Mutable: the weather. Probabilities per request; delays one way."""

    request_lost: float = 0.0
    answer_lost: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    delay_ms: tuple[int, int] = (0, 3)
    slow_delay_ms: tuple[int, int] = (50, 1_500)

    def calm(self) -> None:
        self.request_lost = self.answer_lost = self.twice = self.slow = 0.0


class Connection:
    """Connection of one application to the broker. Mutable: whether it is open, and when the last request arrives."""

    def __init__(self, events: EventQueue, conditions: NetworkConditions, random: Random) -> None:
        self._events = events
        self._conditions = conditions
        self._random = random
        self._last_arrival_ms = 0
        self._alive = True
        self._cut = False

    def close(self) -> None:
        """End the connection of a killed process: requests in flight may arrive, responses are dropped."""
        self._alive = False

    def cut(self) -> None:
        """The process has a successor of the same name: nothing of its own arrives any more."""
        self._alive, self._cut = False, True

    def call(
        self, serve: Callable[[Answer], None], *, answered: Callable[[object], None], failed: Callable[[], None]
    ) -> None:
        """`serve` runs at the broker when the request arrives, and answers then or later; exactly one of the others
        follows, unless closed."""
        weather, chance = self._conditions, self._random.random
        sent_ms = self._events.now_ms
        # A lost request takes no effect at the broker; a lost answer below does. Both are `failed` for the client.
        if chance() < weather.request_lost:
            self._later(sent_ms + self._time_to_notice(), failed)
            return
        # Requests of one TCP connection arrive in the order in which they were sent, however long each one takes.
        arrival_ms = max(sent_ms + self._delay(), self._last_arrival_ms)
        self._last_arrival_ms = arrival_ms
        twice, lost, back_ms = chance() < weather.twice, chance() < weather.answer_lost, self._delay()

        def answer(response: object | None) -> None:
            now_ms = self._events.now_ms
            # Three ways in which an answer does not come: the broker went away, the answer was lost, or it is later
            # than the client waits. All of them look alike to the client, which cannot know whether the request took
            # effect.
            if response is None:
                self._later(now_ms + back_ms, failed)
            elif lost or back_ms >= REQUEST_TIMEOUT_MS:
                self._later(now_ms + self._time_to_notice(), failed)
            else:
                self._later(now_ms + back_ms, lambda: answered(response))

        def arrive() -> None:
            if self._cut:
                return
            # The second copy of a request is what a client's retry looks like after its first answer was lost: rules
            # must be idempotent. No client waits for its answer.
            serve(answer)
            if twice:
                serve(_unheard)

        self._events.at(arrival_ms, arrive)

    def _later(self, time_ms: int, action: Callable[[], None]) -> None:
        def if_alive() -> None:
            if self._alive:
                action()

        self._events.at(time_ms, if_alive)

    def _time_to_notice(self) -> int:
        """A reset is seen at once, silence after the time-out."""
        # Not drawn from a range: the two ends behave differently. A reset makes the client send again while the first
        # request may still be on its way, and silence makes it wait.
        return self._random.choice((5, 60, REQUEST_TIMEOUT_MS))

    def _delay(self) -> int:
        weather = self._conditions
        bounds = weather.slow_delay_ms if self._random.random() < weather.slow else weather.delay_ms
        return self._random.randint(*bounds)


def _unheard(_: object | None) -> None:
    """The answer to the second copy of a request."""
