"""Environment variables that Headrace reads, for the reference in docs/reference/settings.md.

Variables of client settings (`HEADRACE_` and the setting's name) are derived from the settings and not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["ENVIRONMENT_VARIABLES"]

ENVIRONMENT_VARIABLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "HEADRACE_BOOTSTRAP_SERVERS": (
            "clients, commands, applications",
            "The brokers, where neither an argument nor an option names them. Default: localhost:9092.",
        ),
        "HEADRACE_CONFIG": (
            "clients, commands, applications",
            "A properties file with client settings. An application reads only its addresses and security settings.",
        ),
        "HEADRACE_STATE_DIR": (
            "applications",
            (
                "Where applications keep their state, each in a subdirectory of its name. Default: `headrace` below "
                "XDG_STATE_HOME or `~/.local/state` (macOS: `~/Library/Application Support`)."
            ),
        ),
        "HEADRACE_CACHE_DIR": (
            "applications, prepare",
            "Where `headrace prepare` keeps the class archive. Default: `headrace` below XDG_CACHE_HOME or `~/.cache`.",
        ),
        "HEADRACE_DEBUG": ("commands", "Any value: print the traceback of an error, and what Spark prints."),
        "HEADRACE_PLAIN": ("commands", "Any value: text without live tables, as when stdout is no terminal."),
        "NO_COLOR": ("commands", "Any value: no colour on a terminal either."),
        "JAVA_HOME": ("applications", "The Java runtime for Spark. Default: `java` in PATH."),
        "MASTER": ("applications", "Spark's master, where the application names none. Default: local[*]."),
        "NOTIFY_SOCKET": ("broker", "Set by systemd: the broker reports that it is ready, and that it is alive."),
    }
)
"""Variable → who reads it, and what it means."""
