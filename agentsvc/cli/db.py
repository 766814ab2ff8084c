"""`agentsvc db`: checks the database, and gives back room that nothing needs."""

import tempfile
from pathlib import Path

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.options import (
    config_option,
    data_dir_option,
    example,
    existing_data_dir,
    load_config,
)
from agentsvc.storage import check_file, copy_running, lock_data_dir, vacuum_file


@click.group("db", epilog=example("agentsvc db check"))
def command() -> None:
    """Check the database, or write it anew without the room that nothing needs."""


@command.command(epilog=example("agentsvc db check --data-dir /srv/agents"))
@data_dir_option
@config_option
def check(data_dir: str | None, config_file: Path | None) -> None:
    """Check the database, on a copy of this moment; the server may run."""
    places = existing_data_dir(load_config(config_file, server__data_dir=data_dir))
    with tempfile.TemporaryDirectory(dir=places.path, prefix="check-") as scratch:
        copy = Path(scratch, places.database.name)
        copy_running(places.database, copy)
        problems = check_file(copy)
    for problem in problems:
        click.echo(problem)
    if problems:
        raise CommandFailed(
            f"the database is damaged: {places.database}",
            "keep it, and restore the last good backup with `agentsvc restore`",
        )
    click.echo(f"fine: {places.database}", err=True)


@command.command(epilog=example("agentsvc db vacuum"))
@data_dir_option
@config_option
def vacuum(data_dir: str | None, config_file: Path | None) -> None:
    """Write the database anew; the server has to be stopped, and the disk needs room for a copy."""
    places = existing_data_dir(load_config(config_file, server__data_dir=data_dir))
    with lock_data_dir(places.path):
        before = places.database.stat().st_size
        vacuum_file(places.database)
    after = places.database.stat().st_size
    click.echo(f"{before} bytes before, {after} bytes now: {places.database}", err=True)
