"""The page of a broker on a free port of the loopback, with collections on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

from tests.harness.http import Answer, http_request

from headrace.cli.exporter.cluster_snapshot import Selection
from headrace.cli.exporter.name_filter import NameFilter
from headrace.cli.ui.access import AccessRules, Login
from headrace.cli.ui.cluster_watch import ClusterWatch
from headrace.cli.ui.instance_client import ApplicationAccess
from headrace.cli.ui.server import PageServer
from headrace.cli.ui.web_application import WebPage
from headrace.client.admin import Admin

__all__ = ["PageUnderTest", "served_page"]


@dataclass(frozen=True, slots=True)
class PageUnderTest:
    """A running page."""

    watch: ClusterWatch
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, query: dict[str, str] | None = None, **headers: str) -> Answer:
        """Send a request; `_` in names of headers stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return http_request(self.port, path + (f"?{urlencode(query)}" if query else ""), headers=named)

    def collected(self, path: str, query: dict[str, str] | None = None) -> dict[str, object]:
        """Collect once, and return a document of the new frame."""
        assert self.watch.collect() is None
        answer = self.get(path, query)
        assert answer.status == 200, answer
        assert isinstance(answer.body, dict)
        return answer.body


@contextmanager
def served_page(
    servers: str,
    *,
    login: Login | None = None,
    allowed_hosts: tuple[str, ...] = (),
    timeout_ms: int = 10_000,
    shows_records: bool = True,
    applications: ApplicationAccess | None = None,
) -> Iterator[PageUnderTest]:
    """Serve the page of a cluster; nothing is collected before `collected` or `watch.collect`."""

    def open_admin() -> Admin:
        return Admin(servers, api_timeout_ms=timeout_ms, bootstrap_timeout_ms=timeout_ms)

    watch = ClusterWatch(
        open_admin,
        Selection(groups=NameFilter(), topics=NameFilter(exclude="__.*")),
        interval_seconds=1,
    )
    rules = AccessRules.for_address("127.0.0.1", allowed_hosts=allowed_hosts, login=login)
    page = WebPage(watch, rules, open_admin, shows_records=shows_records, applications=applications)
    with PageServer(page, host="127.0.0.1", port=0) as server:
        yield PageUnderTest(watch, server.port)
    watch.close()
