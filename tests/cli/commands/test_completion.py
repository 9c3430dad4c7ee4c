"""`headrace completion`: the printed script, executed in each shell that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command_lines import Command

from headrace.cli.command_table import COMMANDS
from headrace.cli.main import DONE

# What a shell does on TAB, without a terminal. Each prints one completion per line.
PRESS_TAB = {
    "bash": """
eval "$(headrace completion bash)"
COMP_WORDS=({words}); COMP_CWORD={last}; _headrace_completion headrace "{word}" headrace
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    # `_describe` and `compadd` belong to zsh's completion widgets and exist only on TAB: print what they are given.
    "zsh": """
compdef() {{ :; }}
_describe() {{ for each in "${{(@P)3}}"; do print -r -- "${{each%%:*}}"; done; }}
compadd() {{ local name=$argv[-1]; print -rl -- "${{(@P)name}}"; }}
eval "$(headrace completion zsh)"
words=({words}); CURRENT=$(({last} + 1)); _headrace_completion
""",
    "fish": """
headrace completion fish | source
complete -C '{line}' | string split -f 1 \\t
""",
}


def completions(shell: str, line: str, tmp_path: Path) -> set[str]:
    """Type `line` into a shell and press TAB."""
    found = shutil.which(shell)
    if found is None:
        pytest.fail(f"{shell} is not installed")
    words = line.split(" ")
    script = PRESS_TAB[shell].format(
        words=" ".join(repr(word) for word in words), last=len(words) - 1, word=words[-1], line=line
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "HOME": str(tmp_path)}
    done = subprocess.run(
        [found, "-c", script], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", [shell for shell in PRESS_TAB if shell == "bash" or shutil.which(shell)])
def test_the_shell_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    assert completions(shell, "headrace con", tmp_path) == {
        "configs", "console-consumer", "console-producer", "consumer-groups"
    }  # fmt: skip
    assert completions(shell, "headrace topics --boot", tmp_path) == {"--bootstrap-server"}
    assert completions(shell, "headrace completion z", tmp_path) == {"zsh"}


def test_completing_a_command_imports_none(tmp_path: Path) -> None:
    code = "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules)))\n"
    code += "from headrace.cli.main import main; main()"
    environment = os.environ | {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": "headrace ", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert {f"plain,{name}" for name in COMMANDS} <= set(done.stdout.splitlines())
    assert "headrace.cli.commands" not in done.stdout


@pytest.mark.parametrize("shell", sorted(PRESS_TAB))
def test_every_shell_has_a_script(headrace: Command, shell: str) -> None:
    outcome = headrace("completion", shell)
    assert outcome.code == DONE
    assert "_HEADRACE_COMPLETE" in outcome.out
