"""A count on executors of a Spark cluster, each with a state directory of its own: exactly once, whatever is killed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.harness.ports import find_free_port
from tests.harness.yarn_cluster import yarn_cluster
from tests.interop.kafka_jars import skip_without_kafka
from tests.longer import longer
from tests.spark.application.processes import JVM_OF_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("cluster_program.py")


def spark_home(tmp_path: Path) -> Path:
    """Return a Spark home of its own: working directories of executors are made below it."""
    home = tmp_path / "spark-home"
    home.mkdir()
    for path in Path(pyspark.__path__[0]).iterdir():
        if path.name != "work":
            (home / path.name).symlink_to(path)
    return home


def run(
    home: Path,
    *steps: str,
    master: str = "local-cluster[2,1,1024]",
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the program, and check what it counted."""
    out = home.parent / "result.json"
    with (home.parent / "program.log").open("w+") as log:
        subprocess.run(
            [sys.executable, PROGRAM, out, master, *steps],
            env=os.environ
            | (environment or {})
            | {
                "SPARK_HOME": str(home),
                "CLUSTER_SETTINGS": json.dumps(settings or {}),
                "JDK_JAVA_OPTIONS": JVM_OF_SECONDS,
            },
            cwd=home.parent,
            stdout=log,
            stderr=log,
            timeout=900,
            check=False,
        )
        log.seek(0)
        said = log.read()
    assert out.exists(), said[-8000:]
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["counted"] == result["expected"], said[-8000:]
    assert result["repeated"] == [], "and no micro-batch was committed twice"
    assert result["verdict"], "verify finds the same as a batch"
    assert result["in_driver"] == [], "no store lies on the driver's disk"
    print(steps, result["seconds"])
    return result


def test_counts_survive_a_killed_executor(tmp_path: Path) -> None:
    homes = run(spark_home(tmp_path), "kill")["homes"]
    assert len(homes) == 2
    assert all(homes.values()), "each executor has stores"
    assert not set.intersection(*map(set, homes.values())), "and each task has its store on one of them"


@longer
def test_counts_survive_what_happens_to_executors(tmp_path: Path) -> None:
    run(spark_home(tmp_path), "worker", "stop", "replace", "driver")


@longer
@pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, ("iptables", "ss"))), reason="drops packets: root")
def test_counts_survive_links_that_are_cut(tmp_path: Path) -> None:
    run(spark_home(tmp_path), "cut", "deaf")


SETTINGS = {
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
}


@contextlib.contextmanager
def standalone_cluster(tmp_path: Path, workers: int) -> Iterator[tuple[Path, str]]:
    """A standalone master and workers of one core, as processes: (Spark home, address of the master)."""
    home, port = spark_home(tmp_path), find_free_port()
    master = f"spark://127.0.0.1:{port}"
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["JDK_JAVA_OPTIONS"] = JVM_OF_SECONDS
    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> None:
            log = stack.enter_context((tmp_path / f"{name}.log").open("w"))
            # Executors inherit the directory of their worker: each worker is a host with a disk.
            own = environment | {"HEADRACE_EXECUTOR_STATE_DIR": str(tmp_path / f"state-{name}")}
            process = subprocess.Popen([*command[:-1], *arguments], env=own, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        deploy = command[-1]
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        start("master", f"{deploy}.master.Master", "--port", str(port), *address)
        for number in range(workers):
            directory = ["--work-dir", str(tmp_path / f"host-{number}"), "--cores", "1", "--memory", "1g"]
            start(f"worker-{number}", f"{deploy}.worker.Worker", *directory, *address, master)
        yield home, master


@longer
def test_a_subtopology_without_a_slot_gets_one_of_another(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path, workers=3) as (home, master):
        run(home, "short", "lonely", master=master, settings=SETTINGS | {"spark.cores.max": "3"})
    assert "is given up: others wait for a core" in (tmp_path / "program.log").read_text()


@longer
@pytest.mark.parametrize(
    "steps",
    [("kill", "worker", "replace"), ("daemon", "host"), ("long-stop",), ("driver", "freeze")],
    ids=["executors", "hosts", "stopped", "driver"],
)
def test_counts_survive_on_a_standalone_cluster(tmp_path: Path, steps: tuple[str, ...]) -> None:
    with standalone_cluster(tmp_path, workers=2) as (home, master):
        run(home, *steps, master=master, settings=SETTINGS | {"spark.cores.max": "2"})


@longer
@pytest.mark.parametrize(
    "steps",
    # A container whose NodeManager is killed goes on, and has no parent: no step for hosts can follow.
    [("kill", "worker", "replace", "master", "host"), ("daemon",), ("long-stop",), ("driver", "freeze")],
    ids=["executors", "daemon", "stopped", "driver"],
)
def test_counts_survive_on_yarn(tmp_path: Path, steps: tuple[str, ...]) -> None:
    """Hadoop's own ResourceManager and two NodeManagers, each with room for one executor and no second one."""
    home = spark_home(tmp_path)
    settings = {
        "spark.executor.instances": "2",
        "spark.executor.memory": "1g",
        "spark.yarn.am.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.yarn.jars": f"local:{home}/jars/*",  # they are on each host, and 400 MB to copy
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
    }
    with (
        skip_without_kafka(),
        yarn_cluster(tmp_path / "yarn", 2, memory_mb=2816, inherited="HEADRACE_EXECUTOR_STATE_DIR") as configuration,
    ):
        environment = {"HADOOP_CONF_DIR": str(configuration)}
        homes = run(home, *steps, master="yarn", settings=settings, environment=environment)["homes"]
    assert not set.intersection(*map(set, homes.values())), "each task has its store on one of the hosts"
