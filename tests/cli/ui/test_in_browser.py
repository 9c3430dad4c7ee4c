"""The page in a real browser: navigation, order, filter, live updates, hostile names, an outage, keyboard, phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command_lines import GROUP, Join
from tests.cli.ui.running_applications import document_of, joined_application
from tests.cli.ui.served_page import PageUnderTest, served_page
from tests.harness.browser import Browser, needs_browser
from tests.harness.polling import wait_until

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin

pytestmark = [pytest.mark.slow, needs_browser]

HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
ROWS = "[...document.querySelectorAll('main tbody tr')]"


@pytest.fixture
def page(broker: EmbeddedBroker) -> Iterator[PageUnderTest]:
    with served_page(broker.bootstrap_servers) as served:
        yield served


@pytest.fixture
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def test_a_user_finds_a_group_and_watches_it(
    page: PageUnderTest, broker: EmbeddedBroker, browser: Browser, join: Join
) -> None:
    """One story, because the start of a browser costs more than its steps."""
    for number in range(4):
        broker.produce("flights", [b"x"] * 10, partition=number)
    with Admin(broker.bootstrap_servers) as admin:
        for name, offset in ((HOSTILE, 0), ("slow", 3), ("quick", 9)):
            admin.alter_offsets(name, {("flights", number): offset for number in range(4)})
        for number in range(10):
            admin.alter_offsets(f"idle-{number}", {("flights", 0): 10})
        member = join()
        assert member.has_tasks.wait(20)
        page.watch.collect()

        # 1. The overview, and from there by a click to the groups.
        browser.open(page.url)
        browser.wait("document.querySelector('main h1')?.textContent === 'Overview'")
        browser.click("nav a[href='/groups']")
        browser.wait(f"{ROWS}.length === 14")
        assert browser.run("location.pathname") == "/groups"
        assert browser.run("document.activeElement.tagName") == "H1"  # a screen reader begins there

        # 2. A hostile name is text: no element came from it, and no dialog.
        assert HOSTILE in browser.text()
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0

        # 3. Order by lag: the first click of a number is descending; the address has it.
        browser.click("th:nth-child(6) button")
        browser.wait("document.querySelector('[aria-sort=descending]')?.innerText.startsWith('Lag')")
        assert browser.run("location.search") == "?sort=-lag"
        assert browser.run(f"{ROWS}[0].children[5].innerText") == "40"

        # 4. A live update: commits move while the table stays, and with it the focus.
        browser.run(
            "window.first = document.querySelector('main table');"
            "document.querySelector('main th:nth-child(6) button').focus()"
        )
        admin.alter_offsets(HOSTILE, {("flights", number): 10 for number in range(4)})
        page.watch.collect()
        browser.wait(f"{ROWS}[0].innerText.startsWith('slow')")
        assert browser.run("window.first === document.querySelector('main table')")
        assert browser.run("document.activeElement.innerText").startswith("Lag")

        # 5. The filter, typed.
        browser.run("document.querySelector('input[type=search]').focus()")
        browser.type("flight")
        browser.wait(f"{ROWS}.length === 1")
        browser.click("tbody a")
        browser.wait("document.querySelector('main .chip.active')")
        assert GROUP in browser.text("main h1")
        text = browser.text()
        assert "Streams" in text
        assert "flight-delays-A" in text
        assert browser.run("document.querySelector('.chip.active').innerText") == "by-origin: 0, 1"

        # The topology: a topic of the graph is a link, by the keyboard as well.
        graph = browser.run("document.querySelector('.graph').textContent")
        assert "Subtopology by-origin" in graph
        assert "by-origin-changelog" in graph
        browser.run("document.querySelector('.graph a').focus()")
        browser.press("Enter")
        browser.wait("location.pathname === '/topic'")
        browser.run("history.back()")
        browser.wait("location.pathname === '/group'")

        # 6. Back, by the browser's own button: filter and order are as they were.
        browser.run("history.back()")
        browser.wait(f"location.pathname === '/groups' && {ROWS}.length === 1")

        # 7. The keyboard alone: the link to the content, then Enter.
        browser.open(
            f"{page.url}/group?id=%3Cimg%20src%3Dx%20onerror%3D%22alert(1)%22%3E%3Cscript%3Ealert(2)%3C%2Fscript%3E"
        )
        browser.wait(f"document.querySelector('main h1')?.innerText.includes({HOSTILE[:20]!r})")
        browser.press("Tab")
        assert browser.run("document.activeElement.className") == "skip"
        browser.run("window.table = document.querySelector('main table')")
        browser.press("Enter")
        browser.wait("location.hash === '#main'")
        assert browser.run("document.querySelector('main table') === window.table")  # nothing is loaded anew
        browser.press("Tab")
        assert browser.run("document.querySelector('main').contains(document.activeElement)")

        # 8. A mistake in a script cannot make markup of a string: the policy refuses it.
        refused = browser.run(
            "(() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.message } })()"
        )
        assert "TrustedHTML" in refused
        errors = [error for error in browser.errors if "Trusted" not in error]
        assert errors == []


def test_a_user_looks_into_an_application(page: PageUnderTest, broker: EmbeddedBroker, browser: Browser) -> None:
    document = document_of(application="delays")
    (part,) = document["subtopologies"]
    # Names in a document are those of its application's author, or of whoever joined the group.
    part["operators"][0]["store"] = HOSTILE
    part["tasks"][0]["place"] = HOSTILE
    part["tasks"][1]["watermarks_ms"] = {"by-origin": 2**62}  # no date of a browser
    with joined_application(broker.bootstrap_servers, "delays", "flights", [document, document_of(application="x")]):
        page.watch.collect()
        browser.open(f"{page.url}/group?id=delays")
        browser.wait("document.querySelector('main a[href=\"/application?id=delays\"]')")
        browser.click("main a[href='/application?id=delays']")
        browser.wait("document.querySelector('main .graph')")
        text = browser.text()
        assert "Another application answered" in text
        assert "1 instance did not answer" in text
        assert HOSTILE in browser.run("document.querySelector('main').textContent")
        assert browser.run("document.querySelectorAll('main img, main script').length") == 0
        graph = browser.run("document.querySelector('.graph').textContent")
        for words in (
            "2 tasks, 251/s, lag 17",
            "p50 12 ms, p99 48 ms",
            "60 keys, 8.2 kB",
            "2 late rows",
            "6 dead letters",
        ):
            assert words in graph, graph
        assert "delays_table" in graph
        # Order by watermark, by the keyboard; a link of the graph leads to the topic.
        browser.run("[...document.querySelectorAll('th button')].find(b => b.innerText.startsWith('Lag')).focus()")
        browser.press("Enter")
        browser.wait("location.search.includes('tasks.sort=-lag')")
        browser.wait("[...document.querySelectorAll('main tbody')].at(-1).innerText.startsWith('0_1')")
        browser.run("document.querySelector('.graph a').focus()")
        browser.press("Enter")
        browser.wait("location.pathname === '/topic'")
    assert browser.errors == []


def test_records_are_shown_as_text(page: PageUnderTest, broker: EmbeddedBroker, browser: Browser) -> None:
    for number in range(25):
        value = f'{{"id": {number}, "big": 12345678901234567890123, "note": "{HOSTILE[:8]}"}}'
        broker.produce("flights", [value.encode()], key=HOSTILE, partition=1)
    page.watch.collect()
    browser.open(f"{page.url}/topic?name=flights")
    browser.wait("document.querySelector('main tbody a[href*=\"partition=1\"]')")
    browser.click("main tbody a[href*='partition=1']")
    browser.wait(f"{ROWS}.length === 20")
    assert browser.run(f"{ROWS}[0].innerText").startswith("24")
    assert HOSTILE in browser.text()
    assert browser.run("document.querySelectorAll('main img, main script').length") == 0
    # Indented, with the number as it was written.
    browser.click("main tbody details summary")
    browser.wait(
        "document.querySelector('main tbody details[open] pre')?.innerText"
        ".includes('\\n  \"big\": 12345678901234567890123,')"
    )
    browser.run("[...document.querySelectorAll('.pages button')].at(-1).focus()")
    browser.press("Enter")
    browser.wait(f"{ROWS}.length === 5")
    assert "before=5" in browser.run("location.search")
    assert browser.errors == []


def test_an_outage_is_announced_and_its_end_too(browser: Browser, tmp_path: Path) -> None:
    with EmbeddedBroker({"flights": 1}, data_dir=tmp_path) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with served_page(broker.bootstrap_servers, timeout_ms=500) as page:
            page.watch.collect()
            browser.open(f"{page.url}/topics")
            browser.wait(f"{ROWS}.length === 1")
            broker.__exit__(None, None, None)
            page.watch.collect()
            browser.wait("document.querySelector('[role=alert]').innerText.includes('does not answer')")
            assert browser.run(f"{ROWS}.length") == 1  # the last known values stay
            with EmbeddedBroker(data_dir=tmp_path, port=port):
                wait_until(lambda: page.watch.collect() is None, "the broker is found again")
                browser.wait("document.querySelector('[role=alert]').hidden")
                assert browser.run("document.querySelector('[role=status]').innerText") == "The cluster answers again."
    assert browser.errors == []


def test_a_phone_scrolls_in_one_direction_and_keeps_table_roles(page: PageUnderTest, broker: EmbeddedBroker) -> None:
    with Admin(broker.bootstrap_servers) as admin:
        admin.alter_offsets("a-group-with-a-rather-long-name-" * 4, {("flights", 0): 0})
    page.watch.collect()
    with Browser(width=360, height=740, mobile=True, dark=True) as phone:
        with joined_application(broker.bootstrap_servers, "app", "flights", [document_of(application="app")]):
            page.watch.collect()
            phone.open(f"{page.url}/application?id=app")
            phone.wait("document.querySelector('main .graph')")
            assert phone.run("document.documentElement.scrollWidth") <= 360
        for path in ("/", "/groups", "/topics", "/topic?name=flights"):
            phone.open(page.url + path)
            phone.wait("document.querySelector('main section, main table')")
            assert phone.run("document.documentElement.scrollWidth") <= 360, path
        assert phone.run("document.querySelector('main table').getAttribute('role')") == "table"
        assert phone.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(15, 21, 26)"
        assert phone.errors == []
