"""`agentsvc users`: makes users, changes what they may do, blocks and deletes them; also while the server runs."""

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
    """Return the number that an option is, or `none`; None where it is left out."""
    if text is None or text == _NONE:
        return text
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _MAX:
        raise click.BadParameter(f"`{text}` is neither a number nor `{_NONE}`")
    return number


def _whole(ctx: click.Context, param: click.Parameter, text: str | None) -> int | str | None:
    """Return the same, of what comes as a whole only."""
    number = _limit(ctx, param, text)
    if not isinstance(number, float):
        return number
    if number % 1:
        raise click.BadParameter(f"`{text}` is no whole number")
    return int(number)


def _limit_option(name: str, read: Callable[..., Any], text: str) -> Decorator:
    return click.option(name, metavar="LIMIT", callback=read, help=text)


@click.group("users", epilog=example("agentsvc users create ann --role viewer"))
def command() -> None:
    """Make users, change what they may do, block and delete them.

    Settings, conversations, sandboxes and keys belong to a user, and no user sees another's. An
    `admin` looks after users and the server as well, a `viewer` changes nothing. A server that runs
    takes notice at once.
    """


@command.command(epilog=example("agentsvc users create ann --role viewer"))
@click.argument("name", metavar="NAME")
@click.option("--role", type=_ROLES, default="member", help="What the user may do.")
@where_options
def create(name: str, role: str, where: ConfigOptions) -> None:
    """Add a user; `agentsvc keys create --user NAME` makes a key for the user."""
    noted = ("users create", name)
    run_on(
        where.data_directory(),
        lambda database: Users(database).create(name, Role(role)),
        noted=noted,
    )
    click.echo(f"user `{name}` is added as {role}", err=True)


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
@click.option("--role", type=_ROLES, help="What the user may do from now on.")
@click.option("--name", "new_name", metavar="TEXT", help="What the user is called from now on.")
@_limit_option("--running-sandboxes", _whole, "How many may run at the same time.")
@_limit_option("--conversations-per-hour", _whole, "How many may be started.")
@_limit_option("--spend-per-day", _limit, "US dollars, of a day of UTC.")
@_limit_option("--spend-per-month", _limit, "US dollars, of a month of UTC.")
@where_options
def change(
    *,
    name: str,
    role: str | None,
    new_name: str | None,
    where: ConfigOptions,
    **limits: float | str | None,
) -> None:
    """Give a user another role, name or limits; `none` takes a limit away."""
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
    """Show a user, the limits there are, and what was used of them."""

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
    """Let a user in no more, with any key; what the user has stays, and goes on running."""
    _block(where, name, noted="users block", is_blocked=True)
    click.echo(f"user `{name}` is blocked", err=True)


@command.command(epilog=example("agentsvc users unblock ann"))
@click.argument("name", metavar="NAME")
@where_options
def unblock(name: str, where: ConfigOptions) -> None:
    """Let a user in again, with the keys there were."""
    _block(where, name, noted="users unblock", is_blocked=False)
    click.echo(f"user `{name}` is let in", err=True)


@command.command(epilog=example("agentsvc users delete ann --with-owned"))
@click.argument("name", metavar="NAME")
@click.option(
    "--with-owned", is_flag=True, help="Conversations, sandboxes and archives go, too, for good."
)
@yes_option
@where_options
def delete(*, name: str, with_owned: bool, yes: bool, where: ConfigOptions) -> None:
    """Delete a user with keys, settings and secrets.

    What the user owns otherwise is in the way, unless it is to go, too: the user is let in no more, and a
    server removes it, within the time of a sweep or when it starts, and then the user.
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
    click.echo(f"user `{name}` is blocked, and goes after {deletion.owned}", err=True)
    click.echo("hint: a server removes them; `agentsvc users list` shows when it has", err=True)


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
