"""Old version, new version, old version of a program on one group: every result compared with a recount in Python.

The decision about each kind of edit is `dsl/test_edited_programs`; here its consequences. CI runs one edit of each
kind, HEADRACE_LONG=1 all of them. The table at the end (`pytest -s`) is the edit matrix.
"""

from __future__ import annotations

import json

import pytest
from tests.longer import LONG
from tests.spark.edits import EDITS, record, recount

from headrace.broker.embedded import EmbeddedBroker
from headrace.errors import HeadraceError
from headrace.spark.streams_app import StreamsApp

pytestmark = [pytest.mark.spark, pytest.mark.slow]
RUN = [edit for edit in EDITS if LONG or edit.fast]


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker({"flights": 2}, config={"group.streams.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture(scope="module")
def matrix():
    rows = []
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
            app.stream = lambda _topic, **settings: stream(topic, name="flights", **settings)
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
