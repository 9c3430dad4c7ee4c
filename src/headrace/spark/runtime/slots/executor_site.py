"""Site of a slot on a cluster: the state directory on its executor's host, and how the driver learns of it.

    <root>/<group>/<process id>/site.id                           identity of this directory
                                <subtopology>_<partition>/<store>  LMDB (`store`), a cache of the changelog

`root` is `HEADRACE_EXECUTOR_STATE_DIR` of the executor's environment, or `headrace-state` in its working directory,
which Spark makes for one executor. Executors of one host may share a root: a store may be open in several processes,
and refuses stragglers of a failed job. Two hosts may not, since LMDB maps files into memory: the driver refuses a site
that is reported with two boot ids.
"""

from __future__ import annotations

import os
import platform
import re
import urllib.parse
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.spark.runtime.batches.plan import MicroBatchPlan
from headrace.spark.runtime.stores.store import boot_id

__all__ = ["ROOT_VARIABLE", "ExecutorSite", "OpenSite"]

ROOT_VARIABLE = "HEADRACE_EXECUTOR_STATE_DIR"
_TASK = re.compile(r"(?P<subtopology>.+)_(?P<partition>\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSite:
    """A site on this host."""

    path: Path
    site_id: str
    boot_id: str

    def place(self, plan: MicroBatchPlan) -> MicroBatchPlan:
        """Return a plan of the driver as it is to be read here: with this host's directory and boot."""
        # Files of a store were written without fsync. That they survived is known for boots of the host that wrote
        # them only.
        return replace(plan, state_dir=str(self.path), boot_id=self.boot_id)

    def tasks(self, subtopology_id: str) -> list[int]:
        """Return the tasks of a subtopology that have stores here."""
        found = (_TASK.fullmatch(path.name) for path in self.path.iterdir() if path.is_dir())
        return sorted(int(named["partition"]) for named in found if named and named["subtopology"] == subtopology_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSite:
    """Place of the stores of a slot. Pickled with its stage; `open` is called on the executor."""

    group_id: str
    process_id: str  # of the driver's state directory: two instances of an application share no store
    subtopology_id: str

    def open(self) -> OpenSite:
        """Create the state directory if it is missing. Raises OSError."""
        root = Path(os.environ.get(ROOT_VARIABLE) or Path.cwd() / "headrace-state")
        path = root / urllib.parse.quote(self.group_id, safe="") / self.process_id
        path.mkdir(parents=True, exist_ok=True)
        return OpenSite(path=path, site_id=_kept_id(path / "site.id"), boot_id=boot_id())


def describe_executor() -> Mapping[str, str]:
    """Return host and executor, for log lines."""
    return {"host": platform.node(), "executor": _executor_id()}


def _kept_id(path: Path) -> str:
    """Return the id in a file, which the first process writes."""
    if not path.exists():
        aside = path.with_name(f".{path.name}.{uuid.uuid4()}")
        aside.write_text(str(uuid.uuid4()))
        # A link, since a rename would replace the id that another slot has just written and reported.
        with suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path.read_text().strip()


def _executor_id() -> str:
    # Kubernetes has a variable of its own, YARN one of the container (`yarn logs -containerId`); a standalone worker
    # names the executor in the address of its log.
    known = os.environ.get("SPARK_EXECUTOR_ID") or os.environ.get("CONTAINER_ID")
    if known:
        return known
    log_url = urllib.parse.urlparse(os.environ.get("SPARK_LOG_URL_STDERR", ""))
    return next(iter(urllib.parse.parse_qs(log_url.query).get("executorId", [])), "")
