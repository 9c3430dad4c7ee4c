"""kill -9 at each point of the commit path, one by one, while flights flow: nothing is lost, nothing is repeated.

Each flight is a key, so the count of each must be 1, and its row must have been written once, as readers of committed
records see it. Who dies, and where, is in `application/crashing.py`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.spark.application.crashing import DRIVER_POINTS, WORKER_POINTS
from tests.spark.application.judgement import wrongly_counted
from tests.spark.application.processes import (
    PROGRAMS,
    Application,
    BrokerProcess,
    Feed,
    caught_up,
    penstock,
    until,
)

from penstock.client.admin import Admin

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.foreign]

GROUP = "each-flight"
EVERY = 1 if os.environ.get("PENSTOCK_LONG") else 2  # a point takes some 20 s, and CI has 25 minutes for everything
BEFORE = {  # what has to go wrong first
    "in the undo of a store": ("a store was prepared",),
    "driver, in undo": ("after the flush, before the job ends",),
    "worker, while opening": ("after EndTxn, before the next plan",),
    "driver, while opening": ("after the job, before TxnOffsetCommit",),
}


def test_a_crash_at_each_point_of_the_commit_path(tmp_path: Path) -> None:
    crash_file = tmp_path / "crash"
    with BrokerProcess(tmp_path / "data") as broker:
        servers = broker.bootstrap_servers
        application = Application("crashing_flights.py", servers, tmp_path / "a", CRASH_FILE=str(crash_file),
                                  PYTHONPATH=f"{PROGRAMS}:{Path.cwd()}:{Path.cwd() / 'src'}")  # fmt: skip
        with Admin(servers) as admin, Feed(servers, 4) as feed:
            admin.create_topics({"flights": 4})
            application.start()
            feed.run(per_second=400)
            try:
                for point in ("nowhere", *WORKER_POINTS[::EVERY], *DRIVER_POINTS[::EVERY]):
                    began = time.monotonic()
                    points = [*BEFORE.get(point, ()), point] if point != "nowhere" else []
                    crash_file.with_suffix(".new").write_text("\n".join(points))
                    crash_file.with_suffix(".new").rename(crash_file)
                    while points and crash_file.exists():
                        if application.process.poll() is not None:
                            application.start()
                        until(lambda: not crash_file.exists() or application.process.poll() is not None,
                              f"dead {point}", application, broker)  # fmt: skip
                    at = sum(admin.committed_offsets(GROUP).values())
                    if any(one in DRIVER_POINTS for one in points[-1:]):
                        application.process.wait(20)
                    if application.process.poll() is not None:
                        application.start()
                    until(lambda at=at: sum(admin.committed_offsets(GROUP).values()) > at + 500,
                          f"at work again after: {point}", application, broker)  # fmt: skip
                    print(f"{point}: {time.monotonic() - began:.1f} s")
                sent = feed.stop()
                until(lambda: caught_up(admin, GROUP), "caught up", application, broker)
                assert application.stop() == 0
            finally:
                application.end()
        assert wrongly_counted(servers, f"{GROUP}-counted", range(sent)) == []
        out = penstock("verify", str(PROGRAMS / "each_flight.py"), "--bootstrap-server", servers, "--json")
        assert out.returncode == 0, out.stdout.decode() + out.stderr.decode()
        assert json.loads(out.stdout)["status"] == "equal"
