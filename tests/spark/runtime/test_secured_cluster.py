"""An application on a cluster that lets nobody in without TLS and a password, and where that password does not show."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from tests.harness.certificates import Certificates

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.membership.assignment import AssignmentSnapshot
from headrace.errors import CannotConnect, ConfigError
from headrace.spark.runtime.stores.store import BatchKey

pytestmark = pytest.mark.spark

SECRET = "correct-horse-battery"


@pytest.fixture
def broker(certificates: Certificates):
    config = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "group.streams.initial.rebalance.delay.ms": 0,
    }
    with EmbeddedBroker({"flights": 4}, config=config) as running:
        running.add_scram_users([f"SCRAM-SHA-512=[name=pilot,password={SECRET}]"])
        yield running


@pytest.fixture
def access(certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(certificates.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "pilot",
        "sasl.password": SECRET,
    }


def command_lines() -> str:
    """Of every process of this machine that we may look at."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(each.read_bytes().decode("utf-8", "replace"))
        except OSError:
            continue  # it ended meanwhile
    return "\n".join(found)


def test_all_processes_authenticate_and_hide_the_password(
    make_app, running, flights, broker, access, tmp_path, caplog
) -> None:
    caplog.set_level(logging.DEBUG)
    flights.send(broker, range(60))
    app = flights.count_by_origin(make_app(config=access))
    started = running(app)
    started.wait_until("caught-up", timeout=60)
    expected = {key: row["flights"] for key, row in flights.newest(broker, "by-origin").items()}
    assert sum(expected.values()) == 60
    runtime = started._runtime
    shown = [command_lines(), str(app.spark.sparkContext.getConf().getAll()), repr(app), str(app.config)]
    for subtopology in runtime.compiled.subtopologies:
        assignment, batch = AssignmentSnapshot(member_id=""), BatchKey(incarnation="shown", batch_id=0)
        shown.append(runtime.plan_factory.plan(subtopology, assignment, (), batch).to_json())
        plan = runtime.runners[subtopology.subtopology_id]._jobs._chains.main
        shown.append(plan.dataframe()._jdf.queryExecution().toString())
    started.stop()
    shown += [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    shown.append(caplog.text)
    assert "headrace.client.guardian" in shown[0]  # it was looked at while everything ran
    assert [where[:200] for where in shown if SECRET in where] == []
    shutil.rmtree(tmp_path / "a")  # the stores come back out of the changelog
    flights.send(broker, range(60, 90))
    again = running(flights.count_by_origin(make_app(config=access)))
    again.wait_until("caught-up", timeout=60)
    again.stop()
    assert sum(row["flights"] for row in flights.newest(broker, "by-origin").values()) == 90
    verdict = app.verify()
    assert verdict.as_document()["status"] == "equal", verdict


def test_a_wrong_password_ends_it_and_is_not_repeated(make_app, flights, access, caplog) -> None:
    wrong = "not-" + SECRET
    app = flights.count_by_origin(make_app(config=access | {"sasl.password": wrong}))
    with pytest.raises(CannotConnect) as refused:
        app.start()
    assert refused.value.code == "authentication-failed"
    assert wrong not in refused.value.render() + caplog.text


def test_the_environment_and_its_file_are_read_too(make_app, access, monkeypatch, tmp_path) -> None:
    listed = {name: value for name, value in access.items() if name != "sasl.password"}
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in listed.items()))
    monkeypatch.setenv("HEADRACE_CONFIG", str(tmp_path / "client.properties"))
    with pytest.raises(ConfigError, match="needs a user name and a password"):
        make_app()
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", SECRET)
    app = make_app()
    assert app.security.to_settings().items() >= access.items()
    with app.network_client("somebody") as client:
        assert "flights" in client.metadata().topics
    assert SECRET not in repr(app.security) + json.dumps(app.config)
