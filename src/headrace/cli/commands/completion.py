"""`headrace completion SHELL`: a completion script for bash, zsh or fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from headrace.cli.terminal import data

__all__ = ["command"]

_SHELLS = ("bash", "zsh", "fish")
# click's own name for the variable that turns a call of `headrace` into a request for completions.
_VARIABLE = "_HEADRACE_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options of headrace on TAB.

    \b
      bash:  echo 'eval "$(headrace completion bash)"' >> ~/.bashrc
      zsh:   echo 'eval "$(headrace completion zsh)"' >> ~/.zshrc      (after compinit)
      fish:  headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None, shell
    root = context.find_root()
    # source_template and source_vars, not source(): for bash that starts a process to look at the version.
    script = completion(root.command, {}, "headrace", _VARIABLE)
    data(script.source_template % script.source_vars())
