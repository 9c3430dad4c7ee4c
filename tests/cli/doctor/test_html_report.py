"""The doctor's page: well-formed, self-contained, with a policy, and names of strangers as text."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

from tests.cli.doctor.test_report import report_of

from headrace.cli.doctor.html_report import html_report
from headrace.cli.doctor.member_data import MemberData

VOID = frozenset({"meta", "line", "circle", "br"})


class Page(HTMLParser):
    """The tags of a page in order, and whether each was closed. Mutable."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = html_report(report_of("slow-batch-java"), str)
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "form", "a"})
    assert not [name for _, attributes in page.tags for name in attributes if name in ("src", "href", "style")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_the_policy_allows_only_the_style_of_the_page() -> None:
    text = html_report(report_of("slow-batch-java"), str)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text


def test_the_page_has_story_findings_settings_replays_and_lanes() -> None:
    page = Page(html_report(report_of("slow-batch-java"), str))
    text = " ".join(page.text)
    for part in ("Most likely cause", "slow-batches", "max.poll.interval.ms=20000", "as it was", "generation 5"):
        assert part in text
    assert sum(tag == "circle" for tag, _ in page.tags) == 6
    assert sum(tag == "line" and attributes["class"] == "rebalance" for tag, attributes in page.tags) == 6


def test_a_member_that_joined_before_the_first_event_has_a_bar_from_the_left_edge() -> None:
    report = report_of("slow-batch-java")
    left = next(event for event in report.events if event.kind == "left")
    page = Page(
        html_report(replace(report, events=[replace(left, at_ms=left.at_ms - 5_000, kind="rebalance"), left]), str)
    )
    (bar,) = [attributes for tag, attributes in page.tags if tag == "line" and attributes["class"] == "present"]
    assert (bar["x1"], bar["x2"]) == ("220", "950")


def test_names_of_strangers_are_text() -> None:
    report = report_of("slow-batch-java")
    hostile = "<script>alert(1)</script>\"' onload=x"
    events = [replace(event, client_id=hostile, detail=hostile, member_id=hostile) for event in report.events]
    findings = [replace(each, evidence=(hostile,), summary=hostile) for each in report.findings]
    data = MemberData(member_id=hostile, client_id=hostile, protocol=hostile, sent=hostile, received=hostile)
    hostile_report = replace(report, group_id=hostile, events=events, findings=findings, member_data=(data,))
    text = html_report(hostile_report, str)
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name == "onload"]
    assert hostile in "".join(page.text)
