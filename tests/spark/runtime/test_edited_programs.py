"""Old version, new version, old version of a program on one group: every result compared with a recount in Python.

The decision about each kind of edit is `dsl/test_edited_programs`; here its consequences. CI runs one edit of each
kind, HEADRACE_LONG=1 all of them. The table at the end (`pytest -s`) is the edit matrix.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.brokers import broker_fixture
from tests.harness.values import not_none
from tests.longer import LONG
from tests.spark.edits import EDITS, record, recount

from headrace.errors import HeadraceError
from headrace.spark.streams_app import StreamsApp

pytestmark = [pytest.mark.spark, pytest.mark.slow]
RUN = [edit for edit in EDITS if LONG or edit.fast]


broker = broker_fixture({"flights": 2}, config={"group.streams.initial.rebalance.delay.ms": 0}, scope="module")


@pytest.fixture(scope="module")
def matrix():
    rows: list[tuple[str, str, str]] = []
    yield rows
    print(f"\n{'kind of edit':52} {'expected':10} {'seen'}")
    for row in rows:
        print(f"{row[0]:52} {row[1]:10} {row[2]}")


@pytest.fixture
def program(spark, broker, tmp_path, request):
    """`program(version, instance)`: the app of one group per test, reading a topic of its own."""
    group = f"app-{abs(hash(request.node.name)):x}"
    topic = f"flights-{group}"
    broker.create_topics({topic: 2})

    class Program:
        def __init__(self):
            self.group, self.records = group, []

        def send(self, numbers):
            new = [record(number) for number in numbers]
            broker.produce(topic, [json.dumps(each) for each in new], key=lambda value: json.loads(value)["origin"])
            self.records += new

        def app(self, version, instance="a"):
            app = StreamsApp(
                group, spark=spark, bootstrap_servers=broker.bootstrap_servers, state_dir=tmp_path / instance
            )
            stream = app.stream
            renamed = lambda _topic, **settings: stream(topic, name="flights", **settings)  # noqa: E731
            app.stream = renamed  # type: ignore[method-assign, assignment]
            version.build(app).to_topic(f"out-{group}", partitions=2)
            return app

        def run(self, version):
            """The newest row of each key, as the version's columns, after everything was read."""
            self.app(version).run(until="caught-up")
            return self.newest(version)

        def newest(self, version):
            found = {}
            for each in broker.records(f"out-{group}"):
                row = json.loads(each.value)
                if set(version.results) <= set(row):
                    found[each.key] = row
            return sorted(({name: row[name] for name in version.results} for row in found.values()), key=repr)

        def counts(self, version, records=None):
            groups = recount(version, self.records if records is None else records)
            return sorted(groups.values(), key=repr)

        def outputs(self):
            return broker.records(f"out-{group}")

        def produce_foreign(self, value):
            broker.produce(f"{group}-state-repartition", [value], key=lambda _value: "EWR", partition=0)

        def written(self):
            """How long everything is that the group writes, and where it stands."""
            topics = [f"{group}-state-changelog", f"out-{group}"]
            lengths = {name: [(each.partition, each.offset) for each in broker.records(name)] for name in topics}
            return lengths, broker.group(group).offsets

    return Program()


@pytest.mark.parametrize("edit", RUN, ids=lambda edit: edit.name)
def test_old_new_old(program, matrix, edit):
    program.send(range(20))
    assert program.run(edit.old) == program.counts(edit.old)
    program.send(range(20, 30))
    kept = program.records[:20] + [each for each in program.records[20:] if edit.new.keeps(each)]
    if edit.refused is None:
        seen = program.run(edit.new)
        assert seen == program.counts(edit.new, kept)
        program.send(range(30, 36))
        back = program.run(edit.old)
        assert back == program.counts(edit.old, kept + program.records[30:])
        matrix.append((edit.name, "goes on", "goes on; 3 recounts equal"))
        return
    before = program.written()
    with pytest.raises(HeadraceError) as refused:
        program.run(edit.new)
    assert refused.value.code == "state-schema-changed"
    assert edit.refused in str(refused.value)
    assert program.written() == before, "nothing was written"
    assert program.run(edit.old) == program.counts(edit.old)
    matrix.append((edit.name, "refused", "refused at start, nothing written; 2 recounts equal"))


def edit_named(name):
    return next(edit for edit in EDITS if edit.name == name)


def test_two_versions_with_the_same_columns_share_a_group(program):
    edit = edit_named("aggregates reordered")
    program.send(range(20))
    with program.app(edit.old, "a").start() as first, program.app(edit.new, "b").start() as second:
        for app in (first, second):
            app.wait_until("running", timeout=120)
        program.send(range(20, 60))
        first.wait_until("caught-up", timeout=120)
        assert first.tasks or second.tasks
    assert program.newest(edit.old) == program.counts(edit.old)
    program.send(range(60, 70))
    assert program.run(edit.new) == program.counts(edit.new)


def test_another_version_beside_a_running_one_is_refused(program):
    edit = edit_named("aggregate added")
    program.send(range(20))
    with program.app(edit.old, "a").start() as running:
        running.wait_until("caught-up", timeout=120)
        findings = {finding.code: finding for finding in program.app(edit.new, "b").check()}
        assert findings["state-schema-changed"].level == "problem"
        assert edit.refused in findings["state-schema-changed"].message
        with pytest.raises(HeadraceError, match="new: avg") as refused:
            program.app(edit.new, "b").start()
        assert refused.value.code == "state-schema-changed"
        program.send(range(20, 40))
        running.wait_until("caught-up", timeout=120)
    assert program.newest(edit.old) == program.counts(edit.old)
    assert "state-schema" in {finding.code for finding in program.app(edit.old, "b").check()}


def test_two_versions_that_found_a_group_at_once_do_not_mix(program):
    """Neither finds a schema when it starts; the first in the changelog counts."""
    edit = edit_named("aggregate added")
    program.send(range(20))
    versions = (edit.old, edit.new)
    apps = [program.app(version, instance) for version, instance in zip(versions, "ab", strict=True)]
    with ThreadPoolExecutor(2) as pool:
        running = list(pool.map(StreamsApp.start, apps))
    try:
        deadline = time.monotonic() + 120
        while all(app.isActive for app in running) and time.monotonic() < deadline:
            time.sleep(0.1)
        [lost] = [number for number, app in enumerate(running) if not app.isActive]
        assert not_none(running[lost].exception()).code == "state-schema-changed"
        won = 1 - lost
        running[won].wait_until("caught-up", timeout=120)
    finally:
        for app in running:
            app.stop()
    assert program.newest(versions[won]) == program.counts(versions[won])
    columns = {"origin", *versions[won].results}
    assert all(set(json.loads(each.value)) == columns for each in program.outputs()), "the loser wrote nothing"


def test_a_repartition_record_of_another_version_is_refused_by_its_place(program):
    edit = edit_named("aggregate added")
    program.send(range(20))
    program.run(edit.old)
    program.produce_foreign(b"\x02else" + bytes(8))
    program.send(range(20, 24))
    with pytest.raises(HeadraceError, match=r"state-repartition-0@\d+ was written by another version") as refused:
        program.run(edit.old)
    assert refused.value.code == "state-schema-changed"
    assert refused.value.facts["found"] == b"else".hex()
