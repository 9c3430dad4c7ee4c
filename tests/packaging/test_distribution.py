"""The wheel and the sdist: their index page, their metadata, and what they contain."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from readme_renderer import markdown
from trove_classifiers import classifiers

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Source"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built from the working tree."""
    directory = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def metadata(built: tuple[Path, Path]) -> Message:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(wheel.read(name))


@pytest.fixture(scope="module")
def page(metadata: Message) -> str:
    """What a package index shows; its renderer returns None for what it cannot show."""
    assert metadata["Description-Content-Type"] == "text/markdown"
    rendered = markdown.render(str(metadata.get_payload()))
    assert rendered is not None
    return rendered


def test_index_page_links_are_absolute_and_valid(page: str) -> None:
    targets = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    ours = [re.sub(r"#.*", "", target) for target in targets if target.startswith(REPOSITORY)]
    prefix = re.compile(rf"{REPOSITORY}/(?:blob|raw)/v{PROJECT['version']}/")
    paths = [prefix.sub("", target) for target in ours if prefix.match(target)]
    assert len(paths) > 10
    assert len(paths) == len(ours), ours
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_pictures_of_the_index_page_are_files_and_not_pages_about_them(page: str) -> None:
    assert [source for source in re.findall(r'<img[^>]* src="([^"]+)"', page) if "/blob/" in source] == []


def test_the_repository_has_one_address() -> None:
    named = set(re.findall(r"https://github\.com/[\w-]+/[\w-]+", (ROOT / "pyproject.toml").read_text()))
    assert named == {REPOSITORY}
    assert all(url.startswith(REPOSITORY) for url in PROJECT["urls"].values())
    others = [
        page.name
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
        if REPOSITORY in page.read_text()
    ]
    assert others == []


def test_the_metadata_is_complete(metadata: Message) -> None:
    assert set(metadata.get_all("Classifier", [])) <= classifiers
    assert {url.split(",")[0] for url in metadata.get_all("Project-URL", [])} >= {"Source", "Documentation", "Issues"}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    supported = {text.rpartition(":: ")[2] for text in metadata.get_all("Classifier", []) if ":: 3." in text}
    assert supported == {"3.11", "3.12", "3.13"}


def test_every_extra_is_explained() -> None:
    table = re.findall(
        r"^\| `pip install \"?headrace(?:\[([a-z-]+)\])?\"?` \|",
        (ROOT / "docs/how-to/install.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(table) == sorted(["", *PROJECT["optional-dependencies"]])


def test_the_wheel_has_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"headrace", f"headrace-{PROJECT['version']}.dist-info"}
    assert {"headrace/py.typed", "headrace/examples/flight_delays.py", "headrace/cli/errors/topic-missing.md"} <= set(
        names
    )
    assert [name for name in names if "__pycache__" in name or "/tests/" in name] == []


def test_the_sdist_is_the_whole_working_tree(built: tuple[Path, Path]) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    with tarfile.open(built[1]) as archive:
        packed = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    expected = {name for name in listed if (ROOT / name).is_file()} - {".gitignore"}
    assert expected - packed == set()
    assert [name for name in packed if "__pycache__" in name or name.startswith(".venv")] == []


@pytest.mark.slow
def test_fast_tests_run_in_the_unpacked_sdist(built: tuple[Path, Path], tmp_path: Path) -> None:
    """One module that reads files of the tree, one of a pure package, one test with the plugin and a broker."""
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    fixtures = "tests/testing/test_plugin.py::test_the_fixtures"
    modules = ["tests/test_house.py", "tests/protocol/test_request_codec.py", fixtures]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *modules],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["base", "spark"])
def test_pinned_requirements_are_those_of_the_project(name: str) -> None:
    """Each has all direct dependencies at a version that the project allows, the same as in dev.txt."""
    pins = _pins(ROOT / "requirements" / f"{name}.txt")
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    if name == "spark":
        extras = PROJECT["optional-dependencies"]
        wanted += [Requirement(text) for extra in ("client", "cluster", "spark") for text in extras[extra]]
    for requirement in wanted:
        if requirement.name != PROJECT["name"]:
            assert all(requirement.specifier.contains(version) for version in pins[requirement.name]), requirement
            assert pins[requirement.name]
    everything = _pins(ROOT / "requirements" / "dev.txt")
    assert {pin: versions for pin, versions in pins.items() if everything.get(pin) != versions} == {}


def _pins(path: Path) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", path.read_text(), re.MULTILINE):
        pins.setdefault(name, set()).add(version)
    return pins
