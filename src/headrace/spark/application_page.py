"""The web page of one application (`headrace.ui.port`): `headrace ui` with its group and topics, in its own process.

The page takes no time from the driver, which starts micro-batches. It ends with the driver, whatever ends that: its
stdin is a pipe that the driver holds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.child_process import ChildProcess, python_module
from headrace.errors import ConfigError
from headrace.extras import require_extra

if TYPE_CHECKING:
    from headrace.spark.application_settings import ApplicationSettings
    from headrace.spark.topology.nodes import CompiledTopology

__all__ = ["ApplicationPage", "application_page", "page_options"]

ENDS_WITHIN_S: Final = 5.0
log = logging.getLogger("headrace.spark")


def application_page(settings: ApplicationSettings, compiled: CompiledTopology) -> ApplicationPage | None:
    """Return the page, not started; None without `headrace.ui.port`.

    Raises:
        ConfigError: bad-value, extra-missing.
    """
    port = int(settings.config["headrace.ui.port"])
    if not port:
        return None
    if not settings.config["application.server"]:
        raise ConfigError(
            "bad-value",
            f"headrace.ui.port={port} without application.server: the page asks the application there.",
            "Set application.server to 127.0.0.1:0 as well.",
            key="headrace.ui.port",
        )
    if settings.security.protocol != "PLAINTEXT":
        # Another process would need the passwords, in a file or in its environment.
        raise ConfigError(
            "bad-value",
            f"headrace.ui.port={port} on a cluster with {settings.security.protocol} is not supported.",
            "Start the page beside the application: headrace ui --command-config FILE",
            key="headrace.ui.port",
        )
    require_extra("ui")
    return ApplicationPage(settings.name, page_options(settings, compiled), port=port)


def page_options(settings: ApplicationSettings, compiled: CompiledTopology) -> list[str]:
    """Return the options of `headrace ui` that show one application alone. Pure."""
    config: Mapping[str, int | str] = settings.config
    described = compiled.description()
    topics = {sink.topic for sink in compiled.topic_sinks()}
    for part in described.subtopologies:
        topics |= {*part.source_topics, *part.repartition_sink_topics}
        topics |= {each.name for each in (*part.repartition_source_topics, *part.state_changelog_topics)}
    host = str(config["application.server"]).rpartition(":")[0]
    options = [
        *("--bootstrap-server", settings.bootstrap_servers),
        *("--port", str(config["headrace.ui.port"])),
        *("--group-filter", _literal(settings.name)),
        *("--topic-filter", "|".join(_literal(topic) for topic in sorted(topics))),
        *("--application-host", host.strip("[]")),
        "--ends-with-stdin",
    ]
    if token_file := str(config["headrace.state.query.token.file"]):
        options += ["--application-token-file", token_file]
    return options


def _literal(name: str) -> str:
    # Names of groups and topics consist of letters, digits, `.`, `_` and `-`.
    return name.replace(".", r"\.")


class ApplicationPage:
    """The process of a page. Mutable: `open` and `close` belong to one thread."""

    def __init__(self, name: str, options: list[str], *, port: int) -> None:
        self._name, self._options = name, options
        self.url = f"http://127.0.0.1:{port}/application?id={name}"
        self._process: ChildProcess | None = None

    def open(self) -> None:
        """Start the process. A page that cannot be served is logged; the application runs without it."""
        self._process = ChildProcess(python_module("headrace.cli.main", "ui", *self._options))
        self._process.listen(self._on_line, self._on_end, thread_name="headrace-ui")

    def close(self) -> None:
        """End the process. Calling it again has no effect."""
        process, self._process = self._process, None
        if process is not None:
            process.end_input()
            process.wait(ENDS_WITHIN_S)
            process.close()

    def _on_line(self, line: bytes) -> None:
        del line  # the address, which is known once the page is served
        log.info("%s: page at %s", self._name, self.url)

    def _on_end(self, exit_code: int) -> None:
        if exit_code:
            log.warning("%s: its page is not served; headrace ui ended with exit code %d", self._name, exit_code)
