"""`agentsvc openapi`: prints the description of the API, as the server would."""

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

    It is what the server answers at /openapi.json with the same configuration. No server has to
    run for it.
    """
    config = load_config(config_file).config
    prefix = prefix_of(config.server.public_url)
    document = msgspec.json.encode(describe(published_routes(config), prefix=prefix))
    output.write(msgspec.json.format(document, indent=2) + b"\n")
