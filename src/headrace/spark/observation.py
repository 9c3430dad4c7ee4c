"""Outside view of a running application, except for the status file: listeners, metrics and health checks.

The runtime reports `started`, `assigned` and `ended`; this module forwards them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.broker.monitoring.metrics_server import JSON, TEXT, MetricsServer, Page
from headrace.errors import ConfigError
from headrace.metrics.prometheus_text import prometheus_text
from headrace.spark.application_metrics import application_families
from headrace.spark.listeners import Listeners
from headrace.spark.runtime.status import state_of

if TYPE_CHECKING:
    from headrace.client.membership.assignment import AssignmentSnapshot
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["MetricsPort", "Observation"]

PORT_TRIES: Final = 16
log = logging.getLogger("headrace.spark")


class Observation:
    """Listeners, metrics port and health checks of one running application. Mutable."""

    def __init__(self, runtime: RunningInstance, listeners: Iterable[object] = ()) -> None:
        self._runtime = runtime
        self.listeners = Listeners(runtime.group_id, uuid.uuid4())
        self._given = tuple(listeners)
        self._port: MetricsPort | None = None

    def started(self) -> None:
        """Start the metrics port and post the start event, before the member joins.

        Raises:
            ConfigError: port-taken.
        """
        config = self._runtime.settings.config
        for listener in self._given:
            self.listeners.add(listener)
        if port := int(config["headrace.metrics.port"]):
            pages = {"/metrics": self._metrics, "/health/live": self._live, "/health/ready": self._ready}
            self._port = MetricsPort(pages)
            self._runtime.metrics_url = self._port.start(str(config["headrace.metrics.host"]), port)
            log.info("%s: metrics at %s/metrics", self._runtime.group_id, self._runtime.metrics_url)
        for runner in self._runtime.runners.values():
            runner.progress.on_progress = self.listeners.progressed
        # The last step: the metrics port and progress events work when a listener gets this one.
        self.listeners.started()

    def assigned(self, snapshot: AssignmentSnapshot | None) -> None:
        """Report a possibly changed assignment; None reports that all tasks were lost."""
        tasks = {} if snapshot is None else {name: tuple(found) for name, found in snapshot.active.items()}
        self.listeners.tasks_changed(tasks, 0 if snapshot is None else snapshot.member_epoch)

    def ended(self) -> None:
        self.listeners.terminated(self._runtime.error)
        if self._port is not None:
            self._port.close()

    # -- pages --------------------------------------------------------------------------------------------------------

    def _metrics(self) -> Page:
        return True, prometheus_text(application_families(self._runtime)), TEXT

    def _live(self) -> Page:
        """Whether all loops make progress.

        A loop that is stuck for longer than max.poll.interval.ms does not recover.
        """
        # The setting is Kafka's: the time after which a consumer that does not poll counts as failed.
        limit_ms = int(self._runtime.settings.config["max.poll.interval.ms"])
        now = time.monotonic()
        stuck = [
            {
                "reason": "stuck",
                "detail": f"{name} has not turned for {now - runner.last_active_s:.0f} s.",
                "blocks": True,
            }
            for name, runner in self._runtime.runners.items()
            if (now - runner.last_active_s) * 1000 > limit_ms
        ]
        return _page("live", stuck)

    def _ready(self) -> Page:
        runtime = self._runtime
        reasons = []
        if (state := state_of(runtime)) != "running":
            reasons.append({"reason": state, "detail": f"The application is {state}.", "blocks": True})
        reasons += [
            {"reason": "not-ready", "detail": detail, "blocks": not runtime.has_tasks}
            for _, detail in runtime.not_ready
        ]
        # A task that is being opened has an owner and is not processed yet.
        opening = sum(len(runner.opening()) for runner in runtime.runners.values())
        if opening:
            reasons.append({"reason": "opening", "detail": f"{opening} tasks are being opened.", "blocks": True})
        return _page("ready", reasons)


def _page(what: str, reasons: list[dict[str, object]]) -> Page:
    fine = not any(found["blocks"] for found in reasons)
    return fine, json.dumps({"status": what if fine else f"not-{what}", "reasons": reasons}) + "\n", JSON


class MetricsPort:
    """HTTP listener of `headrace.metrics.port`, and the thread that runs its event loop. Mutable.

    Its pages (/metrics, /health/live, /health/ready) come from the same server as the broker's. Several instances on
    one machine may be given the same port: like Spark's UI, each takes the next free one.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._server = MetricsServer(pages)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-metrics", daemon=True)

    def start(self, host: str, port: int) -> str:
        """Start to listen, and return the URL with the port that was bound.

        Raises:
            ConfigError: port-taken, if none of 16 ports is free.
        """
        self._thread.start()
        try:
            bound = asyncio.run_coroutine_threadsafe(self._first_free(host, port), self._loop).result()
        except BaseException:
            self.close()
            raise
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}"

    async def _first_free(self, host: str, port: int) -> int:
        for candidate in range(port, min(65_535, port + PORT_TRIES - 1) + 1):
            try:
                return await self._server.start(host, candidate)
            except ConfigError as error:
                if error.code != "port-taken":
                    raise
        raise ConfigError(
            "port-taken",
            f"headrace.metrics.port: {host}:{port} and the {PORT_TRIES - 1} ports after it are taken",
            "Name another one; 0 turns it off.",
        )

    def close(self) -> None:
        if self._thread.is_alive():
            # Both calls run in the loop's thread, in this order.
            self._loop.call_soon_threadsafe(self._server.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
        if not self._loop.is_running():
            self._loop.close()
