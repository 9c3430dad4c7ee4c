"""Restores on an executor: a process beside each slot with stores, started by `python -m` and the name of this module.

The driver asks it over a link of its own, so that a long replay holds up no micro-batch of the slot. A process and not
a thread: LMDB allows one opening of a file per process, and connections of a worker belong to one thread. The slot's
worker starts it, and it ends with the worker: its stdin is a pipe from there.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.child_process import python_module
from headrace.spark.runtime.batches.plan import MicroBatchPlan, StageReport
from headrace.spark.runtime.batches.stage_reports import StageReports, facts_of
from headrace.spark.runtime.batches.stages import PythonStage
from headrace.spark.runtime.daemon import preload
from headrace.spark.runtime.slots.executor_site import OpenSite
from headrace.spark.runtime.slots.slot_link import LinkAddress, LinkClosed, SlotLink
from headrace.spark.runtime.worker_process import close_stores, forget_client

__all__ = ["RestoreAgent", "Serving", "main", "serve"]

log = logging.getLogger("headrace.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Arguments of an agent. Pickled."""

    address: LinkAddress
    token: str
    name: str
    silence_s: float
    site: OpenSite
    slot: int
    stage: PythonStage

    def __repr__(self) -> str:  # without the token
        return f"Serving({self.name})"


class RestoreAgent:
    """The agent's process, in the worker of its slot."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, serving: Serving) -> Self:
        """Start the process. Returns at once."""
        # The worker's import path: Spark puts files of the application (`--py-files`) there.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(
            python_module("headrace.spark.runtime.stores.restore_agent"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(serving))
        process.stdin.flush()
        return cls(process)

    def stop(self) -> None:
        """End the process. A replay under way is what LMDB's atomic commits are for."""
        self._process.kill()
        self._process.wait()


def serve(serving: Serving) -> None:
    """Restore what the driver asks for, until it ends the link."""
    linked = SlotLink.connect(serving.address, serving.token, serving.name, site=serving.site.site_id)
    with linked as link, link.beating():
        for message in link.messages(serving.silence_s):
            _restore(serving, link, MicroBatchPlan.from_json(message["plan"]))


def _restore(serving: Serving, link: SlotLink, planned: MicroBatchPlan) -> None:
    plan = serving.site.place(planned)
    try:
        run = serving.stage.run_batch(plan, serving.slot)
        while True:
            try:
                next(run)
            except StopIteration as end:
                report: StageReport = end.value
                break
        link.send({"reports": [report.to_json()]})
    except LinkClosed:
        raise
    except Exception as error:  # noqa: BLE001 - the driver decides what follows
        forget_client(plan.bootstrap_servers)
        link.send({"failed": facts_of(error), "batch": [plan.batch.batch_id, plan.batch.attempt]})
    finally:
        # The slot opens them now. Two processes may have a store open, but this one would keep its pages in memory.
        close_stores(Path(plan.state_dir))
        StageReports(plan.state_dir, plan.subtopology_id, plan.batch).remove()


def main() -> None:
    """Run the process."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="headrace restore: %(message)s")
    serving: Serving = pickle.load(sys.stdin.buffer)

    def follow_worker() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=follow_worker, daemon=True).start()
    # Before its hello: a task that is restored would stand still meanwhile, and tasks come to a slot after the hello.
    preload()
    with suppress(LinkClosed, OSError):
        serve(serving)
    os._exit(0)


if __name__ == "__main__":
    main()
