"""Cache of one Python worker process between micro-batches: connections and open stores.

Workers swap roles and slots from batch to batch, so nothing here is the only place of anything: whatever is missing is
opened again. Forked workers start with empty caches, because the daemon opens neither.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.runtime.rows.row_schema import StoreSpec
from headrace.spark.runtime.stores.store import StoreIdentity, TaskStore
from headrace.spark.runtime.stores.store_files import path_of_store

if TYPE_CHECKING:
    from headrace.client.network_client import NetworkClient

__all__ = ["client_for", "close_stores", "forget_client", "set_connection", "store_for", "store_path"]

_clients: dict[str, NetworkClient] = {}
_access: dict[str, Mapping[str, str]] = {}  # how a cluster is reached: client settings, which a plan must not hold
CHECK_S = 30.0
_checked_s = 0.0
_stores: dict[Path, tuple[StoreIdentity, TaskStore]] = {}


def set_connection(bootstrap_servers: str, access: Mapping[str, str]) -> None:
    """Set the cluster and the client settings for `client_for`. Another user gets connections of its own."""
    if _access.get(bootstrap_servers, {}) != access:
        forget_client(bootstrap_servers)
        _access[bootstrap_servers] = access


def client_for(bootstrap_servers: str) -> NetworkClient:
    """This process's client of a cluster."""
    from headrace.client.network_client import NetworkClient

    if bootstrap_servers not in _clients:
        access = _access.get(bootstrap_servers, {})
        _clients[bootstrap_servers] = NetworkClient(bootstrap_servers, client_id="headrace-worker", security=access)
    return _clients[bootstrap_servers]


def forget_client(bootstrap_servers: str) -> None:
    """Drop the client after an error, because the state of its connections is unknown."""
    client = _clients.pop(bootstrap_servers, None)
    if client is not None:
        client.close()


def store_path(state_dir: str | Path, subtopology_id: str, partition: int, spec: StoreSpec) -> Path:
    """Return the directory of one of the stores of a task."""
    return path_of_store(state_dir, subtopology_id, partition, spec.name)


def store_for(path: Path, identity: StoreIdentity) -> TaskStore:
    """Return the open store at `path`, opened again if its files or its identity have changed."""
    _close_stale()
    known = _stores.get(path)
    if known is not None:
        # Another worker may have set the files aside, or a changelog was created again: then the path is another store.
        if known[0] == identity and known[1].is_current:
            return known[1]
        known[1].close()
    store = TaskStore(path, identity)
    _stores[path] = (identity, store)
    return store


def close_stores(state_dir: Path) -> None:
    """Close the open stores below a state directory."""
    for path in [path for path in _stores if state_dir in path.parents]:
        _stores.pop(path)[1].close()


def _close_stale() -> None:
    """Close stores whose files were deleted or set aside, every 30 s: an open file keeps its disk space."""
    global _checked_s
    if time.monotonic() - _checked_s < CHECK_S:
        return
    _checked_s = time.monotonic()
    for path, (_, store) in list(_stores.items()):
        if not store.is_current:
            store.close()
            del _stores[path]
