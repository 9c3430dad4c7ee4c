"""How much a micro-batch may take: the rules alone, against machines made of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.runtime.batches.batch_limits import FIRST_RECORDS, BatchLimits, BatchMeasure


def limits(**given):
    return BatchLimits(**{"most_records": 200_000, "most_bytes": 64 << 20, "target_ms": 2000} | given)


def run(controller, cost_ms, *, record_bytes=100, overhead_ms=50, hidden_ms=0, backlog=10**9, batches=30):
    """Micro-batches of one task on a machine whose records cost so much; (records, milliseconds) of each.

    `hidden_ms` passes within the stages whatever is in a batch, so nobody says that it is overhead.
    """
    told = []
    for _ in range(batches):
        fitting = max(1, -(-controller.bytes // record_bytes))  # a fetch ends behind the record that fills it
        records = min(controller.records, fitting, backlog)
        spent = overhead_ms + hidden_ms + records * cost_ms
        controller.update(
            BatchMeasure(
                largest_records=records,
                largest_bytes=records * record_bytes,
                spent_ms=spent,
                overhead_ms=overhead_ms,
            )
        )
        told.append((records, spent))
    return told


@pytest.mark.parametrize("cost_ms", [0.02, 0.5, 5.0, 400.0])
def test_a_batch_comes_to_last_as_long_as_it_should(cost_ms):
    controller = limits()
    spent = [ms for _, ms in run(controller, cost_ms)]
    assert all(0.7 * 2000 <= ms <= 1.3 * 2000 for ms in spent[-5:]), spent


def test_quick_records_reach_the_setting_and_no_further():
    controller = limits()
    assert controller.records == FIRST_RECORDS
    records = [count for count, _ in run(controller, 0.001, batches=5)]
    assert records[0] == FIRST_RECORDS
    assert records[-1] == 200_000
    assert controller.bytes == 64 << 20


def test_records_that_become_slow_and_quick_again():
    controller = limits()
    run(controller, 0.001)
    slow = run(controller, 2.0)
    assert slow[-1][1] < 2600
    quick = run(controller, 0.001, batches=12)
    assert quick[-1][0] == 200_000


def test_small_batches_for_want_of_records_say_nothing():
    controller = limits()
    run(controller, 0.001)
    run(controller, 0.001, backlog=3)
    assert controller.records == 200_000


@pytest.mark.parametrize("slow_ms", [300, 600, 1100, 1900])
def test_single_records_on_a_busy_machine_do_not_end_in_single_records(slow_ms):
    """A trickle tells nothing of what a record costs; when many come the limit rises again."""
    controller = limits()
    run(controller, 0.01, overhead_ms=50, hidden_ms=slow_ms, backlog=1)
    told = run(controller, 0.01, overhead_ms=50, hidden_ms=slow_ms / 10, batches=15)
    assert told[-1][0] > 100_000, told


def test_overhead_above_the_target_does_not_end_in_single_records():
    controller = limits(target_ms=50)
    told = run(controller, 0.01, overhead_ms=400)
    assert told[-1][0] * 0.01 >= 0.7 * 400, "records get as much time as all the rest"


@pytest.mark.parametrize("deadline_ms", [0, 3333])
def test_slow_first_stages_do_not_keep_batches_small(deadline_ms):
    """Two cores for twenty: half of the time is spent in stages that wait, and a record costs next to nothing."""
    controller = limits(deadline_ms=deadline_ms)
    told = run(controller, 0.002, overhead_ms=800, hidden_ms=1500)
    assert told[-1][0] > 100_000, told


def test_partition_of_large_records_is_bounded_by_its_own_bytes():
    """5 MB a record, 50 ms each: the time is spent on bytes. Others may take thousands of records all the same."""
    controller = limits()
    told = run(controller, 50.0, record_bytes=5 << 20)
    assert told[-1][1] < 2600
    assert controller.records > 10_000


def test_never_less_than_a_record():
    controller = limits(most_records=10, most_bytes=1000)
    for _ in range(50):
        controller.update(BatchMeasure(largest_records=1, largest_bytes=10**8, spent_ms=10**7))
    assert controller.records == 1
    assert controller.bytes >= 1


def test_the_record_limit_holds_when_bytes_do_not_end_fetches():
    controller = limits(bytes_end_fetches=False)
    run(controller, 0.001)
    controller.update(BatchMeasure(largest_records=1000, largest_bytes=1 << 30, spent_ms=500, overhead_ms=50))
    assert controller.records <= (64 << 20) / (1 << 20)


def test_the_transactions_deadline_comes_first():
    controller = limits(deadline_ms=3000)
    run(controller, 0.001)
    assert controller.records == 200_000
    controller.update(BatchMeasure(largest_records=100_000, spent_ms=9000, succeeded=False))
    assert controller.records == 100_000 * 1500 // 9000
    controller.update(BatchMeasure(largest_records=2, spent_ms=90_000, succeeded=False))
    assert controller.records == 1
    assert controller.is_too_late(3100)
    assert not controller.is_too_late(2900)
    assert not limits().is_too_late(10**9)
    told = run(controller, 1.0, batches=40)
    assert max(ms for _, ms in told) <= 3000
    # what failed soon did so for another reason
    before = controller.records
    controller.update(BatchMeasure(largest_records=before, spent_ms=100, succeeded=False))
    assert controller.records == before


def test_constant_batch_overhead_does_not_shrink_batches_to_one_record():
    """After failures the limit is one record, and each batch is later than its deadline: not for that record."""
    controller = limits(deadline_ms=3333)
    controller.update(BatchMeasure(largest_records=1, spent_ms=60_000, succeeded=False))
    assert controller.records == 1
    told = run(controller, 0.1, overhead_ms=4900, batches=12)
    assert told[-1][0] > 5000, told


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**9), st.floats(0, 1e7), st.floats(0, 1e7), st.booleans()),
        max_size=40,
    ),
    st.integers(1, 10**6),
    st.integers(1, 10**9),
    st.integers(1, 10**5),
    st.sampled_from([0.0, 1.0, 3333.3]),
    st.booleans(),
)
def test_limits_stay_inside_their_settings(batches, most_records, most_bytes, target_ms, deadline_ms, ends):
    controller = BatchLimits(
        most_records=most_records,
        most_bytes=most_bytes,
        target_ms=target_ms,
        deadline_ms=deadline_ms,
        bytes_end_fetches=ends,
    )
    for records, size, spent, overhead, succeeded in batches:
        controller.update(
            BatchMeasure(
                largest_records=records,
                largest_bytes=size,
                spent_ms=spent,
                overhead_ms=min(overhead, spent),
                succeeded=succeeded,
            )
        )
        assert 1 <= controller.records <= most_records
        assert 1 <= controller.bytes <= most_bytes
