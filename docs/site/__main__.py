"""Build the documentation site: `python -m docs.site GENERATOR`, with the path of the `zensical` command.

The result is in .build/site/html. It needs no network, neither while it is built nor while it is read. A broken link,
or a file that a page would load from another host, ends the build with exit code 1.

The generator's own check (`--strict`) reads Markdown and takes usage lines such as `[OPTIONS] [FILE]` for references;
`link_check` reads the finished pages instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from docs.site.link_check import site_errors
from docs.site.staging import REPOSITORY, ROOT, stage

BUILD = ROOT / ".build" / "site"


def main(generator: str) -> int:
    """Build and check the site; return the exit code."""
    begin = time.monotonic()
    stage(BUILD / "docs")
    settings = (Path(__file__).parent / "zensical.toml").read_text()
    (BUILD / "zensical.toml").write_text(settings.replace("{repository}", REPOSITORY).replace("{root}", str(ROOT)))
    shutil.rmtree(BUILD / "html", ignore_errors=True)
    built = subprocess.run(
        [str(Path(generator).absolute()), "build", "--clean", "--config-file", str(BUILD / "zensical.toml")],
        cwd=BUILD,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        print(built.stdout + built.stderr, file=sys.stderr)
        return 1
    errors = site_errors(BUILD / "html")
    for error in errors:
        print(error, file=sys.stderr)
    pages = sum(1 for _ in (BUILD / "html").rglob("*.html"))
    print(f"{BUILD / 'html' / 'index.html'}: {pages} pages in {time.monotonic() - begin:.0f} s, {len(errors)} errors")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
