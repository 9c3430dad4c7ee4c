"""Outside view of a running application, except for the status file: listeners, metrics and health checks.

The runtime reports `started`, `assigned` and `ended`; this module forwards them.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.broker.monitoring.metrics_server import JSON, TEXT, Page
from headrace.metrics.prometheus_text import prometheus_text
from headrace.spark.application_metrics import application_families
from headrace.spark.listeners import Listeners
from headrace.spark.metrics_port import MetricsPort
from headrace.spark.runtime.status import state_of

if TYPE_CHECKING:
    from headrace.client.membership.assignment import AssignmentSnapshot
    from headrace.spark.runtime.instance import RunningInstance

__all__ = ["Observation"]

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
            runner.progress.tell = self.listeners.progressed
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
        limit_ms = int(self._runtime.settings.config["max.poll.interval.ms"])
        now = time.monotonic()
        stuck = [
            {"reason": "stuck", "detail": f"{name} has not turned for {now - runner.last_turn:.0f} s.", "blocks": True}
            for name, runner in self._runtime.runners.items()
            if (now - runner.last_turn) * 1000 > limit_ms
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
        opening = sum(len(runner.opening()) for runner in runtime.runners.values())
        if opening:
            reasons.append({"reason": "opening", "detail": f"{opening} tasks are being opened.", "blocks": True})
        return _page("ready", reasons)


def _page(what: str, reasons: list[dict[str, object]]) -> Page:
    fine = not any(found["blocks"] for found in reasons)
    return fine, json.dumps({"status": what if fine else f"not-{what}", "reasons": reasons}) + "\n", JSON
