"""The container image in use: `make image-check` builds it and runs this module (root, buildah).

buildah runs the image's own entry point in a chroot, as the image's user and with the network of this machine, so it
needs neither a daemon nor kernel namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
from tests.harness.ports import find_free_ports

from headrace.client.admin import Admin
from headrace.client.network_client import NetworkClient
from headrace.version import __version__

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".build" / "image"
BUILDAH = ["buildah", "--storage-driver", "vfs", "--root", str(WORK / "storage"), "--runroot", str(WORK / "run")]
IMAGE = f"localhost/headrace:{__version__}"


def main() -> int:
    """Start the image's broker, use it, restart it, stop it; return the exit code."""
    container = _buildah("from", "--pull-never", IMAGE)
    try:
        config = json.loads(_buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
        port, metrics_port = find_free_ports(2)
        command = [
            *config["Entrypoint"],
            *_replaced(config["Cmd"], {"9092": str(port), "9404": str(metrics_port)}),
        ]
        for start in ("first", "second"):
            run = subprocess.Popen([*BUILDAH, "run", "--isolation", "chroot", container, "--", *command])
            try:
                _await_ready(metrics_port, run)
                broker = _broker_process(run.pid)
                assert set(broker.uids()) == {int(config["User"])}, "the broker must not run as root"
                _use(port, start)
                broker.send_signal(signal.SIGTERM)
                assert run.wait(60) == 0, "a stopped broker ends with exit code 0"
            finally:
                if run.poll() is None:
                    for process in psutil.Process(run.pid).children(recursive=True):
                        process.kill()
                    run.kill()
    finally:
        _buildah("rm", container)
    print(f"{IMAGE}: started twice, topics and records kept, stopped by SIGTERM")
    return 0


def _use(port: int, start: str) -> None:
    with NetworkClient(f"localhost:{port}", client_id="image-check") as client:
        topics = set(Admin(client).list_topics())
    if start == "second":
        assert "orders" in topics, "the topic is in the volume"
        records = _headrace("console-consumer", port, "--topic", "orders", "--from-beginning", "--max-messages", "1")
        assert records.strip() == "one order", records
        return
    _headrace("topics", port, "--create", "--topic", "orders", "--partitions", "2")
    _headrace("console-producer", port, "--topic", "orders", text="one order\n")


def _headrace(command: str, port: int, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", command, "--bootstrap-server", f"localhost:{port}", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def _broker_process(parent: int) -> psutil.Process:
    """The one Python process below buildah's own."""
    (found,) = [
        process
        for process in psutil.Process(parent).children(recursive=True)
        if Path(process.cmdline()[0]).name.startswith("python")
    ]
    return found


def _await_ready(metrics_port: int, run: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while run.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/health/ready", timeout=4):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"The broker in {IMAGE} did not become ready (exit code {run.poll()}).")


def _replaced(arguments: list[str], words: dict[str, str]) -> list[str]:
    found = []
    for argument in arguments:
        for old, new in words.items():
            argument = argument.replace(old, new)
        found.append(argument)
    return found


def _buildah(*arguments: str) -> str:
    return subprocess.run(
        [*BUILDAH, *arguments], check=True, capture_output=True, text=True, timeout=300
    ).stdout.strip()


if __name__ == "__main__":
    if os.geteuid() != 0 or shutil.which("buildah") is None:
        raise SystemExit("The image check needs root and buildah: apt-get install buildah mmdebstrap")
    sys.exit(main())
