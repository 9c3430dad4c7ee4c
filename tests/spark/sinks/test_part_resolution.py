"""Which part of a table counts: what the offsets say, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.sinks.interface import SinkPart, SinkTask
from headrace.spark.sinks.part_resolution import Committed, batch_of, metadata_of, resolve_parts, topic_id_of

TASK = SinkTask(group_id="g", subtopology_id="flights", partition=0)


def part(batch, **starts):
    return SinkPart(task=TASK, batch=batch, starts={name.replace("_", "-"): at for name, at in starts.items()})


def by(batch, offset):
    return Committed(offset=offset, metadata=metadata_of(batch))


def test_the_batch_that_the_offsets_name_counts():
    resolved = resolve_parts([part("x.1.0", a_0=100), part("x.1.1", a_0=100)], {"a-0": by("x.1.1", 180)})
    assert [(p.batch, p.ends) for p in resolved.commit] == [("x.1.1", {"a-0": 180})]
    assert [p.batch for p in resolved.discard] == ["x.1.0"]
    assert resolved.undecided == ()


def test_one_of_several_inputs_is_enough():
    """A micro-batch commits the inputs that it moved."""
    resolved = resolve_parts([part("x.2.0", a_0=100, b_0=7)], {"a-0": by("x.1.0", 100), "b-0": by("x.2.0", 9)})
    assert [p.ends for p in resolved.commit] == [{"a-0": 100, "b-0": 9}]


def test_an_offset_that_a_tool_has_set_decides_only_when_it_lies_before():
    for offset, undecided in ((50, 0), (100, 0), (101, 1)):
        resolved = resolve_parts([part("x.1.0", a_0=100)], {"a-0": Committed(offset=offset)})
        assert (len(resolved.discard), len(resolved.undecided)) == (1 - undecided, undecided)
    assert batch_of("somebody else's") is None


def test_offsets_that_have_expired_decide_nothing():
    """The transaction ended, the driver died before the table was told, and the group stayed empty for a week."""
    for committed in ({"a-0": Committed(offset=-1)}, {"a-0": Committed(offset=-1), "b-0": Committed(offset=-1)}):
        resolved = resolve_parts([part("x.1.0", a_0=100, b_0=7)], committed)
        assert (resolved.commit, resolved.discard) == ((), ())
        assert [p.batch for p in resolved.undecided] == ["x.1.0"]
    # The newest offsets expire last: with one of them there, it decides.
    assert resolve_parts([part("x.1.0", a_0=100, b_0=7)], {"a-0": Committed(offset=-1), "b-0": by("x.0.0", 7)}).discard


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.data())
def test_a_crash_anywhere(batches, data):
    """Batches that commit or come to nothing, one after another; the driver dies somewhere, parts are left or not."""
    position, last, counted, pending = 0, "", [], []
    for number, (rows, commits) in enumerate(batches):
        name = f"x.{number}.0"
        mine = part(name, a_0=position)
        if rows:
            pending.append(mine)
        if commits:
            position, last = position + rows + 1, name
            if rows:
                counted.append(name)
        if number == len(batches) - 1 or data.draw(st.booleans()):  # died before the table was told
            resolved = resolve_parts(pending, {"a-0": by(last, position) if last else Committed(offset=0)})
            assert resolved.undecided == ()
            assert {p.batch for p in resolved.commit} == {p.batch for p in pending if p.batch in counted}
        pending = []


def test_parts_of_a_topic_that_is_gone_count_once():
    """Its offsets went with it; nobody can read those rows again. Of two attempts at one range one counts."""
    resolved = resolve_parts([part("x.1.0", a_0=100), part("x.1.1", a_0=100)], {"b-0": Committed(offset=-1)})
    assert [(found.batch, found.ends) for found in resolved.commit] == [("x.1.1", {"a-0": 100})]
    assert [found.batch for found in resolved.discard] == ["x.1.0"]


def test_an_offset_commit_names_the_topics_it_read():
    metadata = metadata_of("x.1.0", {"b": "id-b", "a": "id-a"})
    assert batch_of(metadata) == batch_of(metadata_of("x.1.0")) == "x.1.0"
    assert [topic_id_of(metadata, topic) for topic in ("a", "b", "c")] == ["id-a", "id-b", None]
    assert topic_id_of("somebody else's a@id-a", "a") is None
