"""The access rules that an application is said to need: with exactly these it runs, and each missing one is named."""

import json
import time

import pytest
from tests.harness.polling import wait_until
from tests.longer import LONG

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.admin_access import AclWanted, create_acls, delete_acls, describe_acls
from headrace.client.configuration import ClientConfiguration
from headrace.client.network_client import NetworkClient
from headrace.errors import HeadraceError
from headrace.spark.access_rules import as_commands, rules_for
from headrace.spark.runtime import repartition_purge

pytestmark = pytest.mark.spark

USERS = ("admin", "pilot")
EVERY = 1 if LONG else 4


def access(user):
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": f"pw-{user}",
    }


@pytest.fixture(scope="module")
def broker(flights):
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": "on",
        "super.users": "User:admin",
        "group.streams.initial.rebalance.delay.ms": 0,
    }
    with EmbeddedBroker({"flights": 2, "late": 2}, config=config) as running:
        running.produce("flights", [json.dumps(flights.flight(n)) for n in range(100)])
        running.add_scram_users([f"SCRAM-SHA-512=[name={user},password=pw-{user}]" for user in USERS])
        yield running


@pytest.fixture(scope="module")
def admin(broker):
    configuration = ClientConfiguration(access("admin"), bootstrap_servers=broker.bootstrap_servers)
    with NetworkClient(broker.bootstrap_servers, client_id="admin", security=configuration.security) as client:
        yield client


@pytest.fixture
def make_secured(spark, broker, flights, tmp_path):
    """By name, a stateful application that writes two topics, one of which it creates."""
    from headrace.spark.streams_app import StreamsApp

    def make(name, **config):
        app = StreamsApp(
            name,
            spark=spark,
            bootstrap_servers=broker.bootstrap_servers,
            state_dir=tmp_path / name,
            processing_guarantee="exactly_once_v2",
            config={**access("pilot"), **config},
        )
        from pyspark.sql import functions as F

        rows = app.stream("flights", schema=flights.SCHEMA)
        rows.where("dep_delay > 30").to_topic("late")
        rows.groupBy("origin").agg(F.count("*").alias("flights")).to_topic(f"{name}-counts", partitions=2)
        return app

    return make


def needed(app):
    return rules_for(app.compile(), principal="User:pilot", exactly_once=True)


def test_with_exactly_these_it_runs_and_purges(broker, admin, make_secured, flights, monkeypatch):
    monkeypatch.setattr(repartition_purge, "INTERVAL_S", 0.1)
    app = make_secured("allowed")
    create_acls(admin, needed(app))
    with app.start() as started:
        started.wait_until("caught-up", timeout=180)
        internal = [where for where in broker.group("allowed").offsets if where[0].endswith("-repartition")]

        def begins():
            return [row.offset for row in Admin(admin).list_offsets(dict.fromkeys(internal, "earliest")).values()]

        started._wait(lambda: any(begins()), time.monotonic() + 60, "purged")
    counts = {key: row["flights"] for key, row in flights.newest(broker, "allowed-counts").items()}
    assert counts == {key: row["flights"] for key, row in flights.counted(range(100)).items()}
    assert started.exception() is None
    assert [row.name for row in describe_acls(admin, AclWanted(principal="User:pilot"))]


def told(app, caplog, lacking):
    """What it says: the error that ends it; without CREATE what it waits for; without DELETE it warns and runs on.

    Every application is not ready for a moment, until its internal topics are made.
    """
    runs_on = lacking.operation == "DELETE"
    waits = lacking.operation == "CREATE" and lacking.pattern == "PREFIXED"
    caplog.clear()
    try:
        started = app.start()
    except HeadraceError as error:
        return f"{error} {error.fix}"
    with started:

        def decided():
            told_so = (runs_on and "were not purged" in caplog.text) or (waits and started._runtime.not_ready)
            return told_so or not started.isActive

        wait_until(decided, "the application runs, waits or has ended", timeout_s=180)
        ended = started._runtime.error
        if ended is None and runs_on:
            return caplog.text
        return str(ended) if ended is not None else "; ".join(detail for _, detail in started._runtime.not_ready)


def test_missing_permissions_are_named(broker, admin, make_secured, flights, caplog, monkeypatch):
    monkeypatch.setattr(repartition_purge, "INTERVAL_S", 0.1)
    count = len(needed(make_secured("counted")))
    assert count == 10
    for index in range(0, count, EVERY):
        app = make_secured(f"lacks-{index}")
        rules = needed(app)
        lacking = rules[index]
        delete_acls(admin, [AclWanted(principal="User:pilot")])
        create_acls(admin, [rule for rule in rules if rule != lacking])
        said = told(app, caplog, lacking)
        print(f"without {lacking.operation} {lacking.resource_type} {lacking.name}: {said[:300]}")
        assert lacking.name.rstrip("-") in said, lacking
        assert "author" in said.lower() or "missing" in said, said


def test_the_command_line_says_them(make_secured):
    lines = as_commands(needed(make_secured("printed")))
    assert lines[0] == "--add --allow-principal User:pilot --operation Read --group printed"
    assert lines[-1].endswith("--operation Write --transactional-id printed- --resource-pattern-type prefixed")
    assert len(lines) == 6
