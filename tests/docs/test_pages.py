"""Every page is true where a program can tell: command lines parse, Python compiles and its imports resolve, links
and anchors lead somewhere, and make targets, files, modules, metrics and settings exist.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from typing import TYPE_CHECKING

import click
import pytest
from tests.docs.pages import PAGES, ROOT, Quotation, command_lines, fences, inline_code, prose, words_of

from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS
from headrace.cli.configuration_page import ENVIRONMENT_VARIABLES
from headrace.cli.main import headrace
from headrace.client.client_settings import CLIENT_SETTINGS
from headrace.client.consumer.consumer_settings import CONSUMER_SETTINGS
from headrace.coordinator.settings import GROUP_SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

MAKEFILE = (ROOT / "Makefile").read_text()
SETTINGS = {*BROKER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS, *CLIENT_SETTINGS, *CONSUMER_SETTINGS}
METRICS_PAGES = ("metrics.md", "consumer-metrics.md", "exporter-metrics.md")
# Programs that pages show or let readers write.
EXAMPLES = {"flights.py", "app.py", "conftest.py", "test_orders.py"}
# Settings of Kafka that pages name as missing.
NOT_SUPPORTED = {"log.cleaner.threads"}


def usage_error(quoted: Quotation) -> str | None:
    """Parse a command line as click does, without executing it. Inline code may leave values out."""
    words = [word for word in words_of(quoted.text) if word not in ("…", "...")]
    try:
        context = headrace.make_context("headrace", list(words))
        rest = [*context._protected_args, *context.args]
        if not rest or (rest[0] == "COMMAND" and not quoted.fenced):
            return None
        name, command, arguments = headrace.resolve_command(context, rest)
        assert command is not None
        command.make_context(name, list(arguments), parent=context)
    except click.exceptions.Exit:
        return None  # --help, --version
    except click.UsageError as error:
        message = error.format_message()
        left_out = isinstance(error, click.MissingParameter) or "requires an argument" in message
        return None if left_out and not quoted.fenced else f"{quoted}: {message}"
    return None


def test_command_lines_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, _parameter, _context: value)  # files need not exist
    quoted = list(command_lines("headrace"))
    assert len(quoted) > 150  # the search itself works
    assert [error for each in quoted if (error := usage_error(each)) is not None] == []


@pytest.mark.parametrize("arguments", ["features --describe", "topics --list --nonsense", "brokr", "run"])
def test_a_wrong_command_line_would_be_found(arguments: str) -> None:
    assert usage_error(Quotation(ROOT / "README.md", arguments, fenced=True)) is not None


def test_make_targets_and_their_variables_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    quoted = [*command_lines("make"), *named_targets()]
    assert len(quoted) > 20
    for each in quoted:
        words = words_of(each.text)
        named = [word for word in words if re.fullmatch(r"[a-z-]+", word)]
        variables = [word.partition("=")[0] for word in words if re.fullmatch(r"[A-Z_]+=.*", word)]
        assert set(named) <= targets, each
        assert all(f"({name}" in MAKEFILE for name in variables if name != "PYTHON"), each


def named_targets() -> list[Quotation]:
    return [
        Quotation(ROOT / "Makefile", found, fenced=True) for found in re.findall(r"make ([a-z-]+ [A-Z]+=\S+)", MAKEFILE)
    ]


def test_every_target_is_in_the_help() -> None:
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split()) - {"help"}  # type: ignore[index]
    helped = set(re.findall(r"^([a-z-]+):[^#\n]*##", MAKEFILE, re.MULTILINE))
    # parts of `check`, which is in the help
    assert phony - helped == {"lint", "types", "contracts"}


def test_the_readme_lists_every_command() -> None:
    (listed,) = re.findall(r"^`headrace (broker [^`]*)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed.split(" | ")) == sorted(headrace.list_commands(click.Context(headrace)))


def test_the_architecture_names_every_package() -> None:
    tree = "".join(fences(ROOT / "ARCHITECTURE.md", "")[:1])
    packages = {path.parent.name for path in (ROOT / "src" / "headrace").glob("*/__init__.py")}
    assert sorted(name for name in packages if f"  {name}/ " not in tree) == []
    # Modules of one file may be left out of the sentence; what it names has the contract's order.
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    contract = [name for layer in layers for name in re.findall(r"\w+", layer)]
    (sentence,) = re.findall(
        r"Imports go one way, checked by import-linter: `([^`]*)`", prose(ROOT / "ARCHITECTURE.md")
    )
    named = re.findall(r"\w+", sentence)
    assert named == [name for name in contract if name in named]
    assert sorted(packages - set(named)) == []


def test_every_benchmark_is_described() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    parts = {"spark_instances.py", "kill_pause_app.py", "measured_application.py", "steady_flow.py", "study_member.py"}
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    assert sorted(name for name in scripts - parts if f"| `{name}` |" not in page) == []
    run = re.search(r"^bench:.*\n.*for script in ([\w ]+);", MAKEFILE, re.MULTILINE)
    assert run is not None
    described = page.partition("`make bench` runs")[2].partition("`make pause`")[0]
    assert re.findall(r"`(\w+)\.py`", described) == run[1].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_compiles_and_its_imports_resolve(page: Path) -> None:
    for source in fences(page, "python", "py"):
        for node in ast.walk(ast.parse(source, str(page))):
            if isinstance(node, ast.Import):
                for name in node.names:
                    assert importlib.util.find_spec(name.name.partition(".")[0]) is not None, name.name
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                check_imported(node.module, [name.name for name in node.names])


def check_imported(module: str, names: list[str]) -> None:
    assert importlib.util.find_spec(module.partition(".")[0]) is not None, module
    if module.partition(".")[0] == "headrace":
        found = importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == [], module


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = plain = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while anchor in found:
            number += 1
            anchor = f"{plain}-{number}"
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http:", "https:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_exist(page: Path) -> None:
    names = {
        path.name
        for folder in ("src", "tests", "benchmarks", "examples", "packaging")
        for path in (ROOT / folder).rglob("*.py")
    }
    for code in [*inline_code(page), *fences(page, "", "sh", "bash")]:
        for path in re.findall(
            r"(?<![\w/.-])((?:tests|src|docs|benchmarks|packaging|examples|requirements)/[\w./*-]*\w)", code
        ):
            assert list(ROOT.glob(path)), path
        for name in re.findall(r"(?<![\w./<>…-])([a-z]\w*\.py)\b", code):
            assert name in names | EXAMPLES, name
        for module in re.findall(r"python3? -m ((?:headrace|tests)[\w.]*)", code):
            assert importlib.util.find_spec(module) is not None, module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_metrics_and_variables_exist(page: Path) -> None:
    metrics = "\n".join((ROOT / "docs" / "reference" / name).read_text() for name in METRICS_PAGES)
    variables = set(ENVIRONMENT_VARIABLES) | {client_variable(name) for name in (*CLIENT_SETTINGS, *CONSUMER_SETTINGS)}
    for code in inline_code(page):
        for name in re.findall(r"\b(?:headrace|kafka|process)(?:_[A-Za-z0-9]+){3,}\b", code):
            assert name in metrics, name
        for name in re.findall(
            r"(?<![\w./-])((?:headrace|group|log|state|offsets)(?:\.[a-z0-9]+){2,})(?![\w./(*-])", code
        ):
            assert name in SETTINGS | NOT_SUPPORTED or is_python(name), name
        for name in re.findall(r"\bHEADRACE_[A-Z_]+\b", code):
            assert name in variables | {"HEADRACE_LONG"}, name


def client_variable(setting: str) -> str:
    return "HEADRACE_" + setting.removeprefix("headrace.").upper().replace(".", "_")


def is_python(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        return count == len(parts) or hasattr(found, parts[count])
    return False
