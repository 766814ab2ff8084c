"""`agentsvc completion`: prints what a shell needs to complete commands."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from agentsvc.cli import CommandFailed, cli
from agentsvc.cli.options import example

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(
    "completion",
    epilog=example(
        "agentsvc completion bash > ~/.local/share/bash-completion/completions/agentsvc",
        'agentsvc completion zsh > "${fpath[1]}/_agentsvc"',
        "agentsvc completion fish > ~/.config/fish/completions/agentsvc.fish",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print the completion of commands and options for a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandFailed(f"there is no completion for {shell}")
    click.echo(kind(cli, {}, "agentsvc", "_AGENTSVC_COMPLETE").source())
