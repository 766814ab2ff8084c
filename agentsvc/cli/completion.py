"""`agentsvc completion`: prints the completion script for a shell."""

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from agentsvc.cli import cli
from agentsvc.cli.options import example

_SHELLS: Final = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(
    "completion",
    epilog=example(
        "agentsvc completion bash > ~/.local/share/bash-completion/completions/agentsvc",
        'agentsvc completion zsh > "${fpath[1]}/_agentsvc"',
        "agentsvc completion fish > ~/.config/fish/completions/agentsvc.fish",
    ),
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def command(shell: str) -> None:
    """Print the script that completes commands and options in a shell."""
    click.echo(_SHELLS[shell](cli, {}, "agentsvc", "_AGENTSVC_COMPLETE").source())
