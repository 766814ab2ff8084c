"""`agentsvc users`: makes users, changes what they may do, blocks them; also while the server runs."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from msgspec import UNSET

from agentsvc.auth import Role
from agentsvc.cli.options import config_option, data_dir_option, example
from agentsvc.cli.stored import places_of, run_on
from agentsvc.cli.text import columns
from agentsvc.users import User, UserPatch, Users

_ROLES = click.Choice([role.value for role in Role])


@click.group("users", epilog=example("agentsvc users create ann --role viewer"))
def command() -> None:
    """Make users, change what they may do, and block them.

    Settings, conversations, sandboxes and keys belong to a user, and no user sees another's. An
    `admin` looks after users and the server as well, a `viewer` changes nothing. A server that runs
    takes notice at once.
    """


@command.command(epilog=example("agentsvc users create ann --role viewer"))
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, default="member", help="What the user may do.")
@data_dir_option
@config_option
def create(name: str, role: str, data_dir: str | None, config_file: Path | None) -> None:
    """Add a user; `agentsvc keys create --user NAME` makes a key for the user."""
    _run(data_dir, config_file, lambda users: users.create(name, Role(role)))
    click.echo(f"user `{name}` is added as {role}", err=True)


@command.command("list", epilog=example("agentsvc users list"))
@data_dir_option
@config_option
def list_users(data_dir: str | None, config_file: Path | None) -> None:
    """List all users."""
    rows = [
        (
            user.id,
            user.name,
            user.role.value,
            f"{user.created_at:%Y-%m-%d %H:%M}",
            f"blocked {user.blocked_at:%Y-%m-%d %H:%M}" if user.blocked_at else "active",
        )
        for user in _run(data_dir, config_file, Users.list_all)
    ]
    for line in columns(("ID", "NAME", "ROLE", "CREATED (UTC)", "STATE"), rows):
        click.echo(line)


@command.command("set", epilog=example("agentsvc users set ann --role member"))
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, help="What the user may do from now on.")
@click.option("--name", "new_name", metavar="TEXT", help="What the user is called from now on.")
@data_dir_option
@config_option
def change(
    name: str,
    role: str | None,
    new_name: str | None,
    data_dir: str | None,
    config_file: Path | None,
) -> None:
    """Give a user another role or name."""
    patch = UserPatch(name=new_name or UNSET, role=Role(role) if role else UNSET)
    user = _change(data_dir, config_file, name, patch)
    click.echo(f"user `{user.name}` is {user.role}", err=True)


@command.command(epilog=example("agentsvc users block ann"))
@click.argument("name", metavar="NAME")
@data_dir_option
@config_option
def block(name: str, data_dir: str | None, config_file: Path | None) -> None:
    """Let a user in no more, with any key; what the user has stays, and goes on running."""
    _change(data_dir, config_file, name, UserPatch(is_blocked=True))
    click.echo(f"user `{name}` is blocked", err=True)


@command.command(epilog=example("agentsvc users unblock ann"))
@click.argument("name", metavar="NAME")
@data_dir_option
@config_option
def unblock(name: str, data_dir: str | None, config_file: Path | None) -> None:
    """Let a user in again, with the keys there were."""
    _change(data_dir, config_file, name, UserPatch(is_blocked=False))
    click.echo(f"user `{name}` is let in", err=True)


def _change(data_dir: str | None, config_file: Path | None, name: str, patch: UserPatch) -> User:
    async def body(users: Users) -> User:
        return await users.change((await users.get_named(name)).id, patch)

    return _run(data_dir, config_file, body)


def _run[T](
    data_dir: str | None, config_file: Path | None, body: Callable[[Users], Awaitable[T]]
) -> T:
    places = places_of(data_dir, config_file)
    return run_on(places, lambda database: body(Users(database)))
