"""Whether a table has a roll, by the positions that it records."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.sinks.parquet_journal import CommittedPart
from headrace.spark.sinks.roll_positions import decide, ranges_of

RANGES = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 5), st.integers(6, 9)), min_size=1)


@given(RANGES, st.fixed_dictionaries(dict.fromkeys("abc", st.none() | st.integers(0, 12))))
def test_a_roll_is_committed_only_where_none_of_it_is(ranges, versions):
    verdict = decide(ranges, versions)
    has = [
        0 if (at := versions[name]) is None else max(0, min(at, end) - start) for name, (start, end) in ranges.items()
    ]
    whole = [end - start for start, end in ranges.values()]
    assert verdict == ("done" if has == whole else "commit" if not any(has) else "refuse")


def test_only_parts_that_moved_an_input_make_its_range():
    def part(start, end):
        return CommittedPart(batch="x", starts={"a": start}, ends={"a": end}, size_bytes=1, committed_ms=0)

    # The offsets were set back to 30, and the input waited there while another moved.
    assert ranges_of([part(30, 30), part(100, 110), part(110, 120)]) == {"a": (100, 120)}
    assert ranges_of([part(30, 30)]) == {}
