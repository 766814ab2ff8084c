"""`agentsvc images`: builds the sandbox image, and lists the built ones."""

import asyncio
import os

import click

from agentsvc.cli import sandbox_image as images
from agentsvc.cli.options import example, json_option
from agentsvc.cli.text import print_table

_engine_option = click.option(
    "--engine",
    metavar="URL",
    help="Engine, such as unix:///run/podman/podman.sock; default: DOCKER_HOST or the usual socket.",
)
_MEGABYTE = 1_000_000


@click.group("images", epilog=example("agentsvc images build"))
def command() -> None:
    """Build the sandbox image, and list the built ones."""


@command.command(epilog=example("agentsvc images build --engine unix:///run/podman/podman.sock"))
@click.option(
    "--base",
    metavar="IMAGE",
    default=images.BASE,
    show_default=True,
    help="Base image with Python 3.13; not pulled if the engine has it.",
)
@click.option("--name", metavar="NAME", help="Name; default: localhost/agentsvc-sandbox:VERSION.")
@click.option("--anew", is_flag=True, help="Build it even if one of the same recipe exists.")
@_engine_option
def build(base: str, name: str | None, engine: str | None, *, anew: bool) -> None:
    """Build the sandbox image.

    The first build takes a few minutes and downloads the base image, Debian packages and the agent
    server. After that nothing is downloaded until the recipe changes. Package indexes, proxies and
    certificate authorities of this machine are used; only the authorities are stored in the image.
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
        click.echo("the image exists already, nothing was downloaded", err=True)
    click.echo(built.name)


@command.command("list", epilog=example("agentsvc images list"))
@json_option
@_engine_option
def list_images(*, as_json: bool, engine: str | None) -> None:
    """List the sandbox images of the engine."""
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
