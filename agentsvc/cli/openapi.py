"""`agentsvc openapi`: prints the OpenAPI description, as the server returns it."""

from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from agentsvc.app import published_routes
from agentsvc.cli.options import config_option, example, load_config, output_option
from agentsvc.http import describe, prefix_of


@click.command("openapi", epilog=example("agentsvc openapi --output openapi.json"))
@output_option
@config_option
def command(output: BinaryIO, config_file: Path | None) -> None:
    """Print the OpenAPI 3.1 description of the API.

    It equals the response of /openapi.json of a server with the same configuration. No server needs
    to run.
    """
    config = load_config(config_file).config
    prefix = prefix_of(config.server.public_url)
    document = msgspec.json.encode(describe(published_routes(config), prefix=prefix))
    output.write(msgspec.json.format(document, indent=2) + b"\n")
