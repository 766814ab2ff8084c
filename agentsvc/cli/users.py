"""`agentsvc users`: creates, changes, blocks and deletes users, also while the server runs."""

from collections.abc import Callable
from typing import Any

import click
import msgspec
from msgspec import UNSET

from agentsvc.accounts import Quotas, QuotaStore, QuotaUse, Role, User, UserPatch, Users
from agentsvc.cli.options import (
    ConfigOptions,
    Decorator,
    example,
    json_option,
    where_options,
    yes_option,
)
from agentsvc.cli.stored import run_on
from agentsvc.cli.text import columns, confirm, print_found, print_table
from agentsvc.conversations import PendingUserDeletion, request_user_deletion
from agentsvc.storage import Database

_ROLES = click.Choice([role.value for role in Role])
_NONE = "none"
_MAX = 1_000_000


def _limit(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | str | None:
    """Parse a limit: return a number, "none", or None if the option is not given."""
    if text is None or text == _NONE:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _MAX:
        raise click.BadParameter(f"`{text}` is neither a number nor `{_NONE}`")
    return number


def _integer(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """Parse a limit like `_limit`, for whole numbers only."""
    number = _limit(ctx, param, text)
    if not isinstance(number, float):
        return number
    if number % 1:
        raise click.BadParameter(f"`{text}` is not a whole number")
    return int(number)


def _limit_option(name: str, read: Callable[..., Any], text: str) -> Decorator:
    return click.option(name, metavar="LIMIT", callback=read, help=text)


@click.group("users", epilog=example("agentsvc users create ann --role viewer"))
def command() -> None:
    """Create, change, block and delete users.

    Settings, conversations, sandboxes and keys belong to a user, and are not visible to other users.
    An `admin` also manages users and the server, a `viewer` can only read. A running server applies
    changes at once.
    """


@command.command(epilog=example("agentsvc users create ann --role viewer"))
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, default="member", help="Role; default: member.")
@where_options
def create(name: str, role: str, where: ConfigOptions) -> None:
    """Create a user. Create keys for the user with `agentsvc keys create --user NAME`."""
    noted = ("users create", name)
    run_on(
        where.data_directory(),
        lambda database: Users(database).create(name, Role(role)),
        noted=noted,
    )
    click.echo(f"user `{name}` created with role {role}", err=True)


@command.command("list", epilog=example("agentsvc users list"))
@json_option
@where_options
def list_users(*, as_json: bool, where: ConfigOptions) -> None:
    """List all users."""
    rows = [
        (user.id, user.name, user.role.value, f"{user.created_at:%Y-%m-%d %H:%M}", _state_of(user))
        for user in run_on(where.data_directory(), lambda database: Users(database).list_all())
    ]
    print_table(("ID", "NAME", "ROLE", "CREATED (UTC)", "STATE"), rows, as_json=as_json)


@command.command("set", epilog=example("agentsvc users set ann --role member"))
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, help="New role.")
@click.option("--name", "new_name", metavar="TEXT", help="New name.")
@_limit_option("--running-sandboxes", _integer, "Maximum number of running sandboxes.")
@_limit_option("--conversations-per-hour", _integer, "Maximum number of started conversations.")
@_limit_option("--spend-per-day", _limit, "Maximum US dollars for models per day (UTC).")
@_limit_option("--spend-per-month", _limit, "Maximum US dollars for models per month (UTC).")
@where_options
def change(
    *,
    name: str,
    role: str | None,
    new_name: str | None,
    where: ConfigOptions,
    **limits: float | str | None,
) -> None:
    """Change the role, name or limits of a user; `none` removes a limit."""
    patch = UserPatch(
        name=UNSET if new_name is None else new_name, role=Role(role) if role else UNSET
    )
    given = {
        limit: None if value == _NONE else value
        for limit, value in limits.items()
        if value is not None
    }

    async def body(database: Database) -> User:
        users, quotas = Users(database), QuotaStore(database)
        user = await users.change((await users.get_named(name)).id, patch)
        if given:
            now = await quotas.get(user.id)
            await quotas.set(user.id, msgspec.structs.replace(now, **given))
        return user

    user = run_on(where.data_directory(), body, noted=("users set", name))
    click.echo(f"user `{user.name}` is {user.role}", err=True)


@command.command(epilog=example("agentsvc users show ann"))
@click.argument("name", metavar="NAME")
@json_option
@where_options
def show(name: str, *, as_json: bool, where: ConfigOptions) -> None:
    """Show a user with limits and current usage."""

    async def body(database: Database) -> tuple[User, Quotas, QuotaUse]:
        user, quotas = await Users(database).get_named(name), QuotaStore(database)
        return user, await quotas.get(user.id), await quotas.used(user.id)

    user, quotas, used = run_on(where.data_directory(), body)
    rows = [
        ("role", user.role.value),
        ("state", _state_of(user)),
        ("running sandboxes", f"at most {_shown(quotas.running_sandboxes)}"),
        (
            "conversations in the last hour",
            f"{used.conversations_last_hour} of {_shown(quotas.conversations_per_hour)}",
        ),
        ("US dollars today", f"{used.spent_today:.2f} of {_shown(quotas.spend_per_day)}"),
        (
            "US dollars this month",
            f"{used.spent_this_month:.2f} of {_shown(quotas.spend_per_month)}",
        ),
    ]
    print_found({"name": user.name, **dict(rows)}, columns((user.name, ""), rows), as_json=as_json)


@command.command(epilog=example("agentsvc users block ann"))
@click.argument("name", metavar="NAME")
@where_options
def block(name: str, where: ConfigOptions) -> None:
    """Block a user: reject all of the user's keys. Data is kept, and sandboxes keep running."""
    _block(where, name, noted="users block", is_blocked=True)
    click.echo(f"user `{name}` is blocked", err=True)


@command.command(epilog=example("agentsvc users unblock ann"))
@click.argument("name", metavar="NAME")
@where_options
def unblock(name: str, where: ConfigOptions) -> None:
    """Unblock a user: accept the user's keys again."""
    _block(where, name, noted="users unblock", is_blocked=False)
    click.echo(f"user `{name}` is unblocked", err=True)


@command.command(epilog=example("agentsvc users delete ann --with-owned"))
@click.argument("name", metavar="NAME")
@click.option(
    "--with-owned", is_flag=True, help="Also delete conversations, sandboxes and archives."
)
@yes_option
@where_options
def delete(*, name: str, with_owned: bool, yes: bool, where: ConfigOptions) -> None:
    """Delete a user with keys, settings and secrets.

    Fails if the user owns anything else, unless --with-owned is given: then the user is blocked at
    once, and a running server deletes these and then the user, at its next sweep or start.
    """
    confirm(f"Delete user `{name}`?", is_agreed=yes)

    async def body(database: Database) -> PendingUserDeletion:
        user = await Users(database).get_named(name)
        return await request_user_deletion(database, user.id, with_owned=with_owned)

    data_directory = where.data_directory()
    deletion = run_on(data_directory, body, noted=("users delete", name))
    if deletion.is_over:
        click.echo(f"user `{name}` is deleted", err=True)
        return
    click.echo(f"user `{name}` is blocked, and will be deleted after {deletion.owned}", err=True)
    click.echo("hint: a server deletes them; `agentsvc users list` shows when it is done", err=True)


def _state_of(user: User) -> str:
    if user.leaving_at:
        return f"being deleted {user.leaving_at:%Y-%m-%d %H:%M}"
    return f"blocked {user.blocked_at:%Y-%m-%d %H:%M}" if user.blocked_at else "active"


def _shown(limit: float | None) -> str:
    return "any" if limit is None else f"{limit}"


def _block(where: ConfigOptions, name: str, *, noted: str, is_blocked: bool) -> None:
    async def body(database: Database) -> User:
        users = Users(database)
        user = await users.get_named(name)
        return await users.change(user.id, UserPatch(is_blocked=is_blocked))

    run_on(where.data_directory(), body, noted=(noted, name))
