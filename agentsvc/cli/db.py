"""`agentsvc db`: checks and compacts the database."""

import tempfile
from pathlib import Path

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.options import ConfigOptions, example, where_options
from agentsvc.storage import NEWER, check_file, copy_running, lock_data_dir, vacuum_file


@click.group("db", epilog=example("agentsvc db check"))
def command() -> None:
    """Check or compact the database."""


@command.command(epilog=example("agentsvc db check --data-dir /srv/agents"))
@where_options
def check(where: ConfigOptions) -> None:
    """Check the integrity of the database, on a snapshot; works while the server runs."""
    data_directory = where.data_directory()
    with tempfile.TemporaryDirectory(dir=data_directory.path, prefix="check-") as scratch:
        copy = Path(scratch, data_directory.database.name)
        copy_running(data_directory.database, copy)
        problems = check_file(copy)
    for problem in problems:
        click.echo(problem)
    if problems:
        is_newer = len(problems) == 1 and NEWER in problems[0]
        what = "cannot be used" if is_newer else "is damaged"
        first = "install the release that wrote it, or" if is_newer else "and"
        hint = f"keep it, {first} restore the last good backup with `agentsvc restore`"
        raise CommandFailed(f"the database {what}: {data_directory.database}", hint)
    click.echo(f"fine: {data_directory.database}", err=True)


@command.command(epilog=example("agentsvc db vacuum"))
@where_options
def vacuum(where: ConfigOptions) -> None:
    """Compact the database; needs a stopped server, and free space of up to twice its size."""
    data_directory = where.data_directory()
    with lock_data_dir(data_directory.path):
        before = data_directory.database.stat().st_size
        vacuum_file(data_directory.database)
    after = data_directory.database.stat().st_size
    click.echo(f"{before} bytes before, {after} bytes now: {data_directory.database}", err=True)
