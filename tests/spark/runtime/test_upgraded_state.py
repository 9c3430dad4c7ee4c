"""`headrace upgrade --program`: state of a version that kept other aggregates, both ways, and back; recounted.

The new version counts, sums and averages; the old one counts and takes the largest. Kept: the count, by name.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.harness.brokers import broker_fixture
from tests.harness.polling import wait_until
from tests.longer import longer

from headrace.cli.commands.upgrade import command
from headrace.client.admin import Admin
from headrace.errors import HeadraceError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OLD = "F.count('*').alias('count'), F.max('n').alias('largest')"
NEW = "F.sum('n').alias('total'), F.count('*').alias('count'), F.avg('n').alias('mean')"
ORIGINS = ("EWR", "JFK", "LGA", None)


broker = broker_fixture(config={"group.streams.initial.rebalance.delay.ms": 0}, scope="module")


@pytest.fixture
def group(spark, broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Group(broker, tmp_path, f"app-{tmp_path.name.replace('_', '-')}"[:60])


class Group:
    """One group, its topics, and its program in whatever version."""

    def __init__(self, broker, directory, name):
        self._broker, self._directory, self.name = broker, directory, name
        self.sent = []
        broker.create_topics({f"{name}-in": 2})

    def program(self, aggregates):
        """A file that a command line names."""
        path = self._directory / f"program_{abs(hash(aggregates))}.py"
        path.write_text(
            "from pyspark.sql import SparkSession, functions as F\n"
            "from headrace.spark.streams_app import StreamsApp\n"
            f"app = StreamsApp({self.name!r}, spark=SparkSession.getActiveSession(),\n"
            f"    state_dir={str(self._directory / 's')!r}, bootstrap_servers={self._broker.bootstrap_servers!r})\n"
            f"rows = app.stream({f'{self.name}-in'!r}, schema='origin string, n int', name='flights')\n"
            f"rows.groupBy('origin').agg({aggregates}, name='state').to_topic({f'{self.name}-out'!r}, partitions=2)\n"
        )
        return str(path)

    def run(self, aggregates):
        from headrace.cli.application import load_application

        load_application(self.program(aggregates)).run(until="caught-up")

    def verify(self, aggregates):
        from headrace.cli.application import load_application

        return load_application(self.program(aggregates)).verify()

    def send(self, numbers):
        rows = [{"origin": ORIGINS[n % 4], "n": n} for n in numbers]
        self._broker.produce(f"{self.name}-in", [json.dumps(row) for row in rows])
        self.sent += rows

    def recreate(self):
        """The source is deleted, and created again without a record."""
        topic = f"{self.name}-in"
        with Admin(self._broker.bootstrap_servers) as admin:
            admin.delete_topics([topic])
            wait_until(lambda: topic not in admin.client.metadata([topic], refresh=True).topics, f"{topic} is deleted")
        self._broker.create_topics({topic: 2})

    def upgrade(self, *arguments):
        found = CliRunner().invoke(command, [*arguments, "--bootstrap-server", self._broker.bootstrap_servers])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        assert found.exit_code == 0, found.output
        return found.output

    def newest(self, *names):
        """Group → values, of the newest rows that have these columns."""
        rows = [json.loads(record.value) for record in self._broker.records(f"{self.name}-out")]
        return {row.get("origin"): tuple(row[name] for name in names) for row in rows if set(names) <= set(row)}

    def changelog(self):
        return sorted((r.partition, r.key, r.value) for r in self._broker.records(f"{self.name}-state-changelog"))

    def counted(self, function, rows=None):
        groups: dict[str, list[int]] = {}
        for row in self.sent if rows is None else rows:
            groups.setdefault(row["origin"], []).append(row["n"])
        return {origin: function(numbers) for origin, numbers in groups.items()}


def old_values(numbers):
    return len(numbers), max(numbers)


def test_upgrade_keeps_known_columns_and_downgrade_restores_the_program(group):
    group.send(range(40))
    group.run(OLD)
    assert group.newest("count", "largest") == group.counted(old_values)
    with pytest.raises(HeadraceError, match="new: avg"):
        group.run(NEW)
    with pytest.raises(HeadraceError, match="the new version keeps other columns"):
        group.upgrade(group.name, "--program", group.program(NEW))
    stored = group.changelog()
    shown = group.upgrade(group.name, "--program", group.program(NEW), "--state", "keep", "--dry-run")
    assert "count(*) goes on with what is stored" in shown
    assert "sum(n) is null until its group has a record with a value" in shown
    assert "max(n) is given up" in shown
    assert group.changelog() == stored, "a dry run changes nothing"
    group.upgrade(group.name, "--program", group.program(NEW), "--state", "keep")
    before = list(group.sent)
    group.send(range(40, 60))
    after = group.sent[len(before) :]
    group.run(NEW)
    later = group.counted(lambda numbers: (sum(numbers), sum(numbers) / len(numbers)), after)
    counts = group.counted(len)
    assert group.newest("count", "total", "mean") == {o: (counts[o], *later[o]) for o in counts}
    with pytest.raises(HeadraceError, match="another version of the program"):
        group.run(OLD)
    assert "filled with the records in" in group.upgrade("--rollback", f"{group.name}.positions.json")
    assert group.changelog() == stored, "as it was, record by record"
    group.run(OLD)
    assert group.newest("count", "largest") == group.counted(old_values)


def test_recompute_and_go_back(group):
    group.send(range(40))
    group.run(OLD)
    stored = group.changelog()
    shown = group.upgrade(group.name, "--program", group.program(NEW), "--state", "recompute")
    assert "every aggregate is computed anew" in shown
    group.send(range(40, 50))
    group.run(NEW)
    whole = group.counted(lambda numbers: (len(numbers), sum(numbers), sum(numbers) / len(numbers)))
    assert group.newest("count", "total", "mean") == whole
    group.upgrade("--rollback", f"{group.name}.positions.json")
    assert group.changelog() == stored
    group.send(range(50, 54))
    group.run(OLD)
    assert group.newest("count", "largest") == group.counted(old_values)


def test_a_source_that_is_created_again_adds_to_the_state_or_is_recounted(group):
    """The state holds the deleted topic's records until the user chooses the recount; every record counts once."""
    group.send(range(40))
    group.run(OLD)
    group.recreate()
    group.send(range(100, 160))
    group.run(OLD)
    assert group.newest("count", "largest") == group.counted(old_values), "of both topics"
    assert group.verify(OLD).status == "differs", "the deleted records cannot be recounted"
    group.upgrade(group.name, "--program", group.program(OLD), "--state", "recompute")
    group.run(OLD)
    assert group.newest("count", "largest") == group.counted(old_values, group.sent[40:]), "of the new topic"
    assert group.verify(OLD).status == "equal"


@longer
def test_the_same_columns_need_no_choice(group):
    group.send(range(8))
    group.run(OLD)
    stored = group.changelog()
    reordered = "F.max('n').alias('most'), F.count('*').alias('count')"
    shown = group.upgrade(group.name, "--program", group.program(reordered))
    assert "goes on with the stored state" in shown
    assert group.changelog() == stored
    group.send(range(8, 20))
    group.run(reordered)
    assert group.newest("count", "most") == group.counted(old_values)


def test_other_groups_can_only_be_computed_anew(group):
    group.send(range(8))
    group.run(OLD)
    program = group.program(NEW)
    text = Path(program).read_text().replace("groupBy('origin')", "groupBy(F.lower('origin').alias('origin'))")
    Path(program).write_text(text)
    with pytest.raises(HeadraceError, match="no stored value can be taken over"):
        group.upgrade(group.name, "--program", program, "--state", "keep")


@pytest.mark.parametrize("broken_at", [pytest.param("delete", marks=longer), "state"])
def test_after_a_crash_the_same_command_goes_on(group, monkeypatch, broken_at):
    from headrace.cli.upgrade import plan as steps

    group.send(range(20))
    group.run(OLD)
    name = {"delete": "_delete", "state": "_replace_state"}[broken_at]
    real = getattr(steps, name)

    def crash(*arguments, **named):
        real(*arguments, **named)
        raise RuntimeError("power cut")

    monkeypatch.setattr(steps, name, crash)
    arguments = (group.name, "--program", group.program(NEW), "--state", "keep")
    with pytest.raises(RuntimeError, match="power cut"):
        group.upgrade(*arguments)
    monkeypatch.setattr(steps, name, real)
    group.upgrade(*arguments)
    group.send(range(20, 28))
    group.run(NEW)
    assert {o: row[0] for o, row in group.newest("count", "total").items()} == group.counted(len)
