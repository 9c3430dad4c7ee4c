"""docs/reference/settings.md contains every setting of the code, in the section of its kind, and every variable."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS
from headrace.cli.configuration_page import ENVIRONMENT_VARIABLES, MEMBER_SETTINGS
from headrace.client.client_settings import CLIENT_SETTINGS, SECURITY_SETTINGS
from headrace.client.configuration import SETTINGS as MEMBER_AND_SHARED_SETTINGS
from headrace.client.consumer.consumer_settings import CONSUMER_SETTINGS
from headrace.coordinator.settings import GROUP_SETTINGS
from headrace.spark.settings import SETTINGS as APPLICATION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable

SOURCE = Path(headrace.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "reference" / "settings.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("Broker", BROKER_SETTINGS),
        ("Topic", TOPIC_SETTINGS),
        ("Group", GROUP_SETTINGS),
        ("Application", APPLICATION_SETTINGS),
        ("Consumer", CONSUMER_SETTINGS.keys() - SECURITY_SETTINGS),
        ("Member", MEMBER_AND_SHARED_SETTINGS.keys() - SECURITY_SETTINGS),
        ("Security of clients", SECURITY_SETTINGS),
        ("Environment variables", ENVIRONMENT_VARIABLES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_section_has_every_setting_of_its_kind(section: str, settings: Iterable[str]) -> None:
    assert [name for name in settings if f"`{name}`" not in SECTIONS[section]] == []


def test_every_setting_of_clients_is_in_the_page() -> None:
    assert [name for name in CLIENT_SETTINGS if f"`{name}`" not in PAGE] == []


def test_settings_of_a_member_are_those_that_it_reads() -> None:
    read = set()
    for module in ("client/streams_member.py", "client/configuration.py"):
        for node in ast.walk(ast.parse((SOURCE / module).read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                read.add(node.slice.value)
    assert set(MEMBER_SETTINGS) == read & set(CLIENT_SETTINGS)


def test_every_variable_that_the_code_reads_is_in_the_page() -> None:
    read = set()
    for path in SOURCE.rglob("*.py"):
        if path.name == "environment_variables.py":
            continue
        literals = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        read |= {text for text in literals if isinstance(text, str)}
    named = {text for text in read if re.fullmatch(r"HEADRACE_[A-Z_]*[A-Z]", text)}
    assert sorted(named - ENVIRONMENT_VARIABLES.keys()) == []
    assert sorted(ENVIRONMENT_VARIABLES.keys() - read) == []
