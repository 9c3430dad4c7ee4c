"""Masters and settings that a session may not have: refused, or reported by `check`, with the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.spark.spark_session import session
from headrace.spark.streams_app import StreamsApp

pytestmark = pytest.mark.spark

SESSIONS = """
import json
from pyspark.sql import SparkSession
from headrace.errors import ConfigError
from headrace.spark.streams_app import StreamsApp

quiet = SparkSession.builder.config("spark.ui.enabled", "false")
local = quiet.master("local[1]").config("spark.speculation", "true").config("spark.dynamicAllocation.enabled", "true")
spark = local.getOrCreate()
spark.conf.set("spark.sql.retainGroupColumns", "false")
app = StreamsApp("settings", spark=spark, bootstrap_servers="127.0.0.1:1")
app.stream("flights", schema="n int").to_topic("copies")
found = {finding.message.split()[0]: finding.level for finding in app.check() if finding.code == "session-setting"}
spark.stop()
spark = quiet.master("local-cluster[1,1,1024]").getOrCreate()
try:
    StreamsApp("clusters", spark=spark)
except ConfigError as error:
    print(json.dumps([found, error.code, error.message, error.facts.get("where")]))
spark.stop()
"""


@pytest.mark.parametrize("master", ["yarn-client", "k8s://https://host", "mesos://host", "local-cluster[2]", "sc://x"])
@pytest.mark.parametrize("named", ["argument", "settings"])
def test_an_untested_kind_of_master_is_refused_before_spark_starts(master: str, named: str) -> None:
    with pytest.raises(ConfigError, match="expected a local one") as refused:
        session("app", master=master) if named == "argument" else session("app", settings={"spark.master": master})
    assert refused.value.code == "spark-master"
    assert "one instance of the application per host" in refused.value.fix


@pytest.mark.parametrize(
    ("variable", "value", "code", "message"),
    [
        ("MASTER", "mesos://host", "spark-master", "Invalid master 'mesos://host'"),
        ("MASTER", "yarn", "cluster-setting", "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"),
        ("SPARK_REMOTE", "sc://host", "spark-connect", "this is Spark Connect"),
    ],
)
def test_the_environment_is_refused_at_the_line_of_the_application(
    tmp_path: Path, variable: str, value: str, code: str, message: str
) -> None:
    program = tmp_path / "flights.py"
    program.write_text('from headrace.spark.streams_app import StreamsApp\n\napp = StreamsApp("flights")\n')
    run = subprocess.run(
        [sys.executable, program], env=os.environ | {variable: value}, capture_output=True, text=True, timeout=60
    )
    assert message in run.stderr
    assert f"code   {code}" in run.stderr
    assert f"where  {program}:3" in run.stderr


@pytest.mark.slow
def test_cluster_session_is_refused_and_slot_moving_settings_reported(tmp_path: Path) -> None:
    program = tmp_path / "sessions.py"
    program.write_text(SESSIONS)
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    found, code, message, where = json.loads(run.stdout.splitlines()[-1])
    assert code == "cluster-setting"
    assert where == f'{program}:{SESSIONS.splitlines().index("try:") + 2}  StreamsApp("clusters", spark=spark)'
    assert "local-cluster[1,1,1024]" in message
    assert found["spark.speculation"] == found["spark.dynamicAllocation.enabled"] == "problem"
    assert found["spark.sql.retainGroupColumns"] == "problem"
    assert found["spark.scheduler.mode"] == "note"


def test_spark_connect_is_refused():
    class Connect:
        """As a Spark Connect session: no JVM session behind it."""

    with pytest.raises(ConfigError, match="StreamsApp needs a classic Spark session; this is Spark Connect"):
        StreamsApp("app", spark=Connect())


def test_java_missing(monkeypatch, tmp_path):
    from headrace.spark.spark_session import check_java

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError) as caught:
        check_java()
    assert caught.value.code == "java-missing"
    assert "found none (JAVA_HOME is not set, no java in PATH)" in caught.value.message
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(ConfigError, match="is Java 8"):
        check_java()
