"""A real Apache Hadoop YARN: a ResourceManager and NodeManagers as processes, on loopback addresses.

Each NodeManager is a host of its own: an address of 127.0.0.0/8, directories, and the environment that its containers
inherit. Containers are processes of this machine (`DefaultContainerExecutor`); the file system is the local one.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.harness.polling import wait_until
from tests.harness.ports import find_free_ports
from tests.interop.kafka_jars import YARN, java, kafka_jars

__all__ = ["yarn_cluster"]

_MANAGERS = "org.apache.hadoop.yarn.server"
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "--add-opens=java.base/java.lang=ALL-UNNAMED")


@contextlib.contextmanager
def yarn_cluster(directory: Path, nodes: int, *, memory_mb: int, inherited: str) -> Iterator[Path]:
    """Run a ResourceManager and `nodes` NodeManagers.

    Args:
        directory: For everything that is written.
        nodes: Hosts; the first one is 127.0.0.1.
        memory_mb: Memory of each for containers, which limits how many of them it gets.
        inherited: An environment variable of containers: a directory of its own for each host.

    Returns:
        The directory of the client's configuration, for HADOOP_CONF_DIR.
    """
    ports = iter(find_free_ports(5 + 4 * nodes))
    manager = {
        f"yarn.resourcemanager.{name}": f"127.0.0.1:{next(ports)}"
        for name in ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    }
    manager |= {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": str(directory / "tmp"),
        "hadoop.http.staticuser.user": getpass.getuser(),
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.scheduler.minimum-allocation-mb": "256",
        # A host that is lost is noticed soon, and a crowded machine does not lose one.
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.am.liveness-monitor.expiry-interval-ms": "30000",
        "yarn.resourcemanager.am.max-attempts": "4",
        "yarn.resourcemanager.nm.liveness-monitor.interval-ms": "1000",
        "yarn.scheduler.capacity.root.queues": "default",
        "yarn.scheduler.capacity.root.default.capacity": "100",
        "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    }
    client = _configuration(directory / "client", manager)
    with contextlib.ExitStack() as stack:
        _start(stack, client, "resourcemanager.ResourceManager", {})
        for number in range(nodes):
            host, own = f"127.0.0.{number + 1}", directory / f"host-{number}"
            settings = manager | {
                f"yarn.nodemanager.{name}": f"{host}:{next(ports)}"
                for name in ("address", "localizer.address", "webapp.address", "collector-service.address")
            }
            settings |= {
                "hadoop.tmp.dir": str(own / "tmp"),
                "yarn.nodemanager.hostname": host,
                "yarn.nodemanager.local-dirs": str(own / "local"),
                "yarn.nodemanager.log-dirs": str(own / "logs"),
                "yarn.nodemanager.resource.memory-mb": str(memory_mb),
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.pmem-check-enabled": "false",
                "yarn.nodemanager.disk-health-checker.enable": "false",
                "yarn.nodemanager.env-whitelist": f"JAVA_HOME,HADOOP_CONF_DIR,{inherited}",
            }
            _start(
                stack,
                _configuration(own, settings),
                "nodemanager.NodeManager",
                {inherited: str(directory / f"state-{number}"), "HADOOP_CONF_DIR": str(client)},
            )
        address = manager["yarn.resourcemanager.webapp.address"]
        wait_until(lambda: len(_running_nodes(address)) == nodes or None, f"{nodes} NodeManagers")
        yield client


def _configuration(directory: Path, settings: Mapping[str, str]) -> Path:
    """Write the files that Hadoop reads its settings from, and return their directory."""
    directory.mkdir(parents=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    for name in ("core-site", "yarn-site", "capacity-scheduler"):
        (directory / f"{name}.xml").write_text(f"<configuration>{properties}</configuration>")
    (directory / "log4j.properties").write_text(
        "log4j.rootLogger=INFO,out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n\n"
    )
    return directory


def _start(stack: contextlib.ExitStack, configuration: Path, name: str, environment: Mapping[str, str]) -> None:
    command = [java(), *_JVM, "-cp", f"{configuration}:{kafka_jars(YARN)}/*", f"{_MANAGERS}.{name}"]
    log = stack.enter_context((configuration / "manager.log").open("w"))
    process = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log, cwd=configuration)
    # At once: a NodeManager that is asked to end waits for its ResourceManager, and containers would go on.
    stack.callback(process.wait, 60)
    stack.callback(process.kill)


def _running_nodes(address: str) -> list[Any]:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/ws/v1/cluster/nodes") as answer:
        found = json.load(answer).get("nodes") or {}
        return [node for node in found.get("node", []) if node["state"] == "RUNNING"]
    return []
