"""Where `StreamsApp.start()` enters the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.running_app import RunningApp
from headrace.spark.runtime.application import ApplicationRuntime
from headrace.spark.topology.nodes import CompiledTopology

if TYPE_CHECKING:
    from headrace.spark.streams_app import StreamsApp

__all__ = ["start"]


def start(app: StreamsApp, compiled: CompiledTopology) -> RunningApp:
    """Check topics, build and warm the plans, join the group; the application then runs in the background.

    Raises CannotConnect, BrokerError("topic-missing"), StateError("state-locked").
    """
    runtime = ApplicationRuntime(app, compiled)
    runtime.start()
    return RunningApp(runtime)
