"""What the pages about operation name exists: metrics, settings, error codes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.client.client_settings import CLIENT_SETTINGS

ROOT = Path(__file__).parent.parent.parent
PAGES = ("operations.md", "operate-applications.md", "monitor.md", "kubernetes.md")
PAGE = "\n".join((ROOT / "docs" / "how-to" / name).read_text() for name in PAGES)
QUOTED = re.findall(r"`([^`\n]+)`", PAGE)


def test_metrics_of_the_page_are_those_that_are_served() -> None:
    known = "".join((ROOT / "docs" / "reference" / name).read_text() for name in ("metrics.md", "exporter-metrics.md"))
    named = {name for text in QUOTED for name in re.findall(r"\b(?:headrace|kafka|process)_[A-Za-z0-9_]+", text)}
    assert len(named) > 15
    assert (
        sorted(name for name in named if name not in known and name.replace("kafka_network_", "…_") not in known) == []
    )


def test_settings_of_the_page_are_settings() -> None:
    prefixes = (
        "headrace.",
        "transaction.",
        "max.poll",
        "state.cleanup",
        "acceptable.",
        "processing.",
        "group.instance",
    )
    named = {text.partition("=")[0] for text in QUOTED if text.startswith(prefixes) and " " not in text}
    assert len(named) > 8
    assert sorted(named - set(CLIENT_SETTINGS) - set(BROKER_SETTINGS)) == []


def test_error_codes_of_the_page_have_a_page() -> None:
    pages = {path.stem for path in (ROOT / "src/headrace/cli/errors").glob("*.md")}
    for code in (
        "not-authorized",
        "sink-failed",
        "disk-full",
        "state-locked",
        "state-of-another-group",
        "state-format",
    ):
        assert f"`{code}`" in PAGE
        assert code in pages


def test_documented_certificates_pass_strict_verification(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "security.md").read_text()
    (commands,) = [block for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) if "openssl req -x509" in block]
    short = commands.replace("rsa:3072", "rsa:2048")  # made in a tenth of the time
    subprocess.run(["bash", "-ec", short], cwd=tmp_path, check=True, capture_output=True)
    command = ["openssl", "verify", "-x509_strict", "-verify_hostname", "kafka.example.org", "-CAfile", "ca.pem"]
    verified = subprocess.run([*command, "server.pem"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert verified.stdout == "server.pem: OK\n", verified.stderr
