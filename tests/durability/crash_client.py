"""A client of the crash test: it lives through all lives of the broker, and knows when one has ended."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.harness.wire import WireClient

from headrace.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from tests.durability.crash import Crash

__all__ = ["Client", "Stopped", "Violation"]


class Violation(AssertionError):
    """The promise was broken."""


class Stopped(Exception):
    """The run is over."""


class Client:
    """A thread that does its work again and again until told to stop; it connects anew when the broker is gone."""

    def __init__(self, crash: Crash, name: str, work: Callable[[Client], None]) -> None:
        self._crash, self._name, self._work = crash, name, work
        self._wire: WireClient | None = None
        self.lives = 1  # of the broker, as seen from here
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def call(self, api_key: ApiKey, request: object) -> Any:
        """None when the connection was lost before the answer came: what became of the request is not known."""
        try:
            self._wire = self._wire or WireClient(self._crash.broker.port)
            return self._wire.call(api_key, request)
        except (OSError, EOFError):
            self.lives += self._wire is not None
            self.close()
            time.sleep(0.005)
            return None

    def insist(self, api_key: ApiKey, request: object) -> Any:
        """The same request until it is answered. Raises Stopped."""
        while (answer := self.call(api_key, request)) is None:
            if self._crash.stopping.is_set():
                raise Stopped
        return answer

    def ask(self, api_key: ApiKey, request: object, answered: Callable[[Any], None]) -> None:
        """Once; without an answer `answered` is not called."""
        answer = self.call(api_key, request)
        if answer is not None:
            answered(answer)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _run(self) -> None:
        try:
            while not self._crash.stopping.is_set():
                self._work(self)
                time.sleep(0.002)
        except Stopped:
            pass
        except Exception:
            self._crash.failures.append(f"{self._name}: {traceback.format_exc()}")
        finally:
            self.close()
