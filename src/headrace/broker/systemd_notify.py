"""sd_notify, in the few lines it takes: tells systemd that the broker is ready, stops, or is alive (sd_notify(3)).

Does nothing unless NOTIFY_SOCKET is set, which systemd does for units of Type=notify.
"""

from __future__ import annotations

import contextlib
import os
import socket

__all__ = ["notify_service", "watchdog_seconds"]


def notify_service(*states: str) -> bool:
    """Sends `READY=1`, `STOPPING=1`, `STATUS=…`, `WATCHDOG=1`. Whether systemd listens; a failure changes nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):  # Linux's abstract names begin with a zero byte
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(address)
        channel.sendall("\n".join(states).encode())
        return True
    return False


def watchdog_seconds() -> float | None:
    """How often `WATCHDOG=1` is due: half of what systemd waits; None without a watchdog."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 2e6 if given.isdigit() and int(given) > 0 else None
