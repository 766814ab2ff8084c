"""`agentsvc images`: builds the image in which agents run, and shows what an engine has of it."""

import asyncio
import os

import click

from agentsvc.cli import sandbox_image as images
from agentsvc.cli.options import example, json_option
from agentsvc.cli.text import print_table

_engine_option = click.option(
    "--engine",
    metavar="URL",
    help="Engine, such as unix:///run/podman/podman.sock; otherwise DOCKER_HOST or the usual socket.",
)
_MEGABYTE = 1_000_000


@click.group("images", epilog=example("agentsvc images build"))
def command() -> None:
    """Build the image in which agents run, and show what there is of it."""


@command.command(epilog=example("agentsvc images build --engine unix:///run/podman/podman.sock"))
@click.option(
    "--base",
    metavar="IMAGE",
    default=images.BASE,
    show_default=True,
    help="Image with Python 3.13 to begin with; one the engine has is not pulled.",
)
@click.option("--name", metavar="NAME", help="Name of the image; otherwise the one `list` shows.")
@click.option("--anew", is_flag=True, help="Build it although there is one of the same recipe.")
@_engine_option
def build(base: str, name: str | None, engine: str | None, *, anew: bool) -> None:
    """Build the sandbox image.

    The first time takes a few minutes and fetches the base image, Debian packages and the agent
    server. After that the engine has it, and nothing is fetched until the recipe changes. Package
    indexes, proxies and certificate authorities of this machine are used; of these only the
    authorities go into the image.
    """
    recipe = images.find_recipe(os.environ, base=base)
    built, is_new = asyncio.run(
        images.build(
            recipe,
            name or images.default_name(),
            engine=engine,
            anew=anew,
            report=lambda text: click.echo(text, err=True),
        )
    )
    if not is_new:
        click.echo("it is there already, nothing was fetched", err=True)
    click.echo(built.name)


@command.command("list", epilog=example("agentsvc images list"))
@json_option
@_engine_option
def list_images(*, as_json: bool, engine: str | None) -> None:
    """List the sandbox images that an engine has."""
    current = images.find_recipe(os.environ).fingerprint
    rows = [
        (
            one.name,
            one.id.removeprefix("sha256:")[:12],
            f"{one.size_bytes // _MEGABYTE} MB",
            "current" if one.fingerprint == current else "of another recipe or base",
        )
        for one in asyncio.run(images.listed(engine=engine))
    ]
    print_table(("IMAGE", "ID", "SIZE", "RECIPE"), rows, as_json=as_json)
