"""Metrics as text: what Prometheus' own parser reads."""

from __future__ import annotations

from tests.metrics.parsed_text import GROUPS, all_families, parsed

from headrace.metrics.prometheus_text import Family, Sample, prometheus_text


def test_the_text_is_what_the_format_asks_for() -> None:
    samples = parsed(prometheus_text(all_families()))
    assert samples[GROUPS + 'group_count{protocol="streams"}'] == 3
    assert samples[GROUPS + 'group_count{protocol="classic"}'] == 4
    assert samples[GROUPS + 'streams_group_count{state="Stable"}'] == 2
    assert samples[GROUPS + 'streams_group_count{state="NotReady"}'] == 1
    assert samples[GROUPS + 'streams_group_count{state="Dead"}'] == 0
    assert samples['headrace_groups_count{protocol="streams",state="not_ready"}'] == 1
    assert samples['headrace_groups_count{protocol="streams",state="stable"}'] == 2
    assert samples[GROUPS + 'num_partitions{state="failed"}'] == 1
    assert samples[GROUPS + "event_queue_size"] == 3


def test_label_values_are_escaped() -> None:
    family = Family(
        mbean="d:type=t",
        attribute="a-b",
        kind="gauge",
        help="A \\ in a help.",
        samples=(Sample(value=1.0, labels={"l": 'a"b\\c\nd'}),),
    )
    assert prometheus_text([family]) == (
        '# HELP d_t_a_b A \\\\ in a help.\n# TYPE d_t_a_b gauge\nd_t_a_b{l="a\\"b\\\\c\\nd"} 1.0\n'
    )
