"""`agentsvc db`: checks the database, and gives back room that nothing needs."""

import tempfile
from pathlib import Path

import click

from agentsvc.cli import CommandFailed
from agentsvc.cli.options import ConfigOptions, example, where_options
from agentsvc.storage import NEWER, check_file, copy_running, lock_data_dir, vacuum_file


@click.group("db", epilog=example("agentsvc db check"))
def command() -> None:
    """Check the database, or write it anew without the room that nothing needs."""


@command.command(epilog=example("agentsvc db check --data-dir /srv/agents"))
@where_options
def check(where: ConfigOptions) -> None:
    """Check the database, on a copy of this moment; the server may run."""
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
        first = "install the release it is of, or" if is_newer else "and"
        hint = f"keep it, {first} restore the last good backup with `agentsvc restore`"
        raise CommandFailed(f"the database {what}: {data_directory.database}", hint)
    click.echo(f"fine: {data_directory.database}", err=True)


@command.command(epilog=example("agentsvc db vacuum"))
@where_options
def vacuum(where: ConfigOptions) -> None:
    """Write the database anew; the server has to be stopped, and up to twice its size be free."""
    data_directory = where.data_directory()
    with lock_data_dir(data_directory.path):
        before = data_directory.database.stat().st_size
        vacuum_file(data_directory.database)
    after = data_directory.database.stat().st_size
    click.echo(f"{before} bytes before, {after} bytes now: {data_directory.database}", err=True)
