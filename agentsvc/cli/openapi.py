"""`agentsvc openapi`: prints the description of the API, as the server would."""

from pathlib import Path

import click
import msgspec

from agentsvc.app import published_routes
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import FILE, config_option, example, load_config
from agentsvc.http import describe, prefix_of


@click.command("openapi", epilog=example("agentsvc openapi --output openapi.json"))
@click.option(
    "--output", type=FILE, metavar="FILE", help="File to write; otherwise standard output."
)
@config_option
def command(output: Path | None, config_file: Path | None) -> None:
    """Print the OpenAPI 3.1 description of the API.

    It is what the server answers at /openapi.json with the same configuration. No server has to
    run for it.
    """
    config = load_config(config_file).config
    prefix = prefix_of(config.server.public_url)
    document = msgspec.json.encode(describe(published_routes(config), prefix=prefix))
    text = msgspec.json.format(document, indent=2) + b"\n"
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_bytes(text)
    except OSError as exc:
        raise CommandFailed(f"the file cannot be written: {exc.strerror}: {output}") from exc
