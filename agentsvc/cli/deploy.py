"""`agentsvc deploy`: prints deployment files for containers, proxies and monitoring."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

import agentsvc
from agentsvc.cli.options import example, json_option
from agentsvc.cli.text import print_table

FILES: Final[Mapping[str, str]] = {
    "Caddyfile": "Caddy in front of the server, with TLS",
    "Containerfile": "an image of the server",
    "alerts.yaml": "alerts for Prometheus",
    "compose.yaml": "the server in a container, for Docker and Podman",
    "front-end.nginx.conf": "nginx with a login in front of a front end that has no key",
    "grafana.json": "a dashboard for Grafana",
    "traefik.yaml": "Traefik in front of the server, with TLS",
}
"""The files in `agentsvc/deploy`, each with a description."""

_DIRECTORY: Final = Path(agentsvc.__file__).parent / "deploy"


@click.group("deploy", epilog=example("agentsvc deploy list"))
def command() -> None:
    """Print deployment files for containers, proxies, Prometheus and Grafana."""


@command.command("list", epilog=example("agentsvc deploy list"))
@json_option
def list_files(*, as_json: bool) -> None:
    """List the deployment files."""
    print_table(("FILE", "WHAT IT IS"), list(FILES.items()), as_json=as_json)


@command.command(
    epilog=example(
        "agentsvc deploy show alerts.yaml | sudo tee /etc/prometheus/agentsvc.yaml",
        "agentsvc deploy show compose.yaml > compose.yaml",
    )
)
@click.argument("name", type=click.Choice(list(FILES)), metavar="FILE")
def show(name: str) -> None:
    """Print a file; its comments tell what to adapt."""
    click.echo((_DIRECTORY / name).read_text("utf-8"), nl=False)
