"""The command `agentsvc acp`, which an editor starts."""

import sys

import click

from agentsvc.cli.extension import ServerChoice, example, get_api, server_options

from .agent import Agent
from .config import OrderQuery
from .connection import Connection


@click.command("acp", epilog=example("agentsvc acp --repository octocat/hello-world"))
@click.option("--repository", metavar="NAME", help="Repository of new sessions.")
@click.option("--branch", metavar="NAME", help="Branch; default: that of the repository.")
@click.option("--model", metavar="NAME", help="Model; default: that of the settings.")
@server_options
def command(
    *, repository: str | None, branch: str | None, model: str | None, server: ServerChoice
) -> None:
    """Run as an agent of an editor, over standard input and output (Agent Client Protocol).

    Each session is a conversation in a sandbox of the server, without access to the editor's files.
    """
    order = OrderQuery(repository=repository, branch=branch, model=model)

    def send(line: bytes) -> None:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    connection = Connection(sys.stdin.buffer, send)
    connection.serve(Agent(get_api(server), connection, order).answer)
