"""`agentsvc open`: opens the console in a browser."""

import click

from agentsvc.cli.options import example
from agentsvc.cli.server import IdParam, ServerChoice, get_api, server_options
from agentsvc.cli.talk import CONVERSATIONS, find_conversation


@click.command("open", epilog=example("agentsvc open", "agentsvc open 7c9e6679 --print"))
@click.argument("conversation_id", type=IdParam(CONVERSATIONS), metavar="[ID]", required=False)
@click.option("--print", "is_printed", is_flag=True, help="Only print the URL.")
@server_options
def command(conversation_id: str | None, *, is_printed: bool, server: ServerChoice) -> None:
    """Open the console, or the conversation with this ID in it, and print the URL."""
    api = get_api(server)
    address = f"{api.url}/"
    if conversation_id:
        address += f"#/c/{find_conversation(api, conversation_id)['id']}"
    click.echo(address)
    if not is_printed:
        click.launch(address)
