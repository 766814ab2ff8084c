"""`agentsvc keys`: creates, lists and revokes API keys, and approves logins of programs."""

import asyncio
from datetime import timedelta

import click

from agentsvc.accounts import ApiKey, DeviceLogins, KeyRing, KeyScope, Role, check_name
from agentsvc.base import MAX_INT, NotFound, Secret, now
from agentsvc.cli import CommandFailed
from agentsvc.cli.options import ConfigOptions, example, json_option, where_options
from agentsvc.cli.secretoutput import output_option, secret_output
from agentsvc.cli.stored import run_on
from agentsvc.cli.text import print_table
from agentsvc.storage import Database, change_master_key, lock_data_dir

_ROLES = click.Choice([role.value for role in Role])
_SCOPES = click.Choice([scope.value for scope in KeyScope])
_MAX_DAYS = 3650


@click.group("keys", epilog=example("agentsvc keys create --user ann --name laptop"))
def command() -> None:
    """Create, list and revoke API keys, and approve logins of programs.

    A key belongs to a user, like settings, conversations and sandboxes. A running server applies
    changes at once.
    """


@command.command(epilog=example("agentsvc keys create --user ann --name laptop"))
@click.option("--user", required=True, metavar="NAME", help="Owner of the key; created if missing.")
@click.option("--name", default="key", metavar="TEXT", help="Name of the key, for lists.")
@click.option("--role", type=_ROLES, help="Role of a new user; default: member.")
@click.option(
    "--scope",
    type=_SCOPES,
    default=KeyScope.ADMIN.value,
    help="Permissions; default: all of the user. `read` only reads, `run` excludes keys, users and"
    " the server; `service` only creates keys for users, and needs an administrator.",
)
@click.option(
    "--days", type=click.IntRange(min=1, max=_MAX_DAYS), help="Days until expiry; default: never."
)
@output_option
@where_options
def create(
    *,
    user: str,
    name: str,
    role: str | None,
    scope: str,
    days: int | None,
    output: str | None,
    where: ConfigOptions,
) -> None:
    """Create a key and print it; it cannot be shown again."""

    async def body(database: Database) -> tuple[ApiKey, Secret]:
        # Check it before a user without a key is created.
        check_name(name)
        keys = KeyRing(database)
        user_id = await keys.find_user(user)
        if user_id is not None and role is not None:
            raise CommandFailed(f"user `{user}` exists already", "leave out --role")
        if user_id is None and scope == KeyScope.SERVICE and role != Role.ADMIN:
            raise CommandFailed(f"there is no user `{user}`", "name an administrator")
        user_id = user_id or await keys.create_user(user, Role(role or Role.MEMBER))
        expires_at = now() + timedelta(days=days) if days else None
        return await keys.create_key(user_id, name, scope=KeyScope(scope), expires_at=expires_at)

    data_directory = where.data_directory()
    with secret_output(output, data_directory.path, "key") as shown:
        key, value = run_on(data_directory, body, noted=("keys create", f"user {user}, {name}"))
        shown.tell(f"key {key.id} of user `{user}`", value.reveal())


@command.command("list", epilog=example("agentsvc keys list"))
@json_option
@where_options
def list_keys(*, as_json: bool, where: ConfigOptions) -> None:
    """List all keys, including revoked ones; their values are not stored."""
    rows = [
        (
            str(key.id),
            key.user_name,
            key.name,
            key.scope.value,
            f"{key.prefix}…",
            f"{key.created_at:%Y-%m-%d %H:%M}",
            f"{key.last_used_at:%Y-%m-%d %H:%M}" if key.last_used_at else "never",
            _state(key),
        )
        for key in run_on(where.data_directory(), lambda database: KeyRing(database).list_keys())
    ]
    titles = ("ID", "USER", "NAME", "SCOPE", "KEY", "CREATED (UTC)", "LAST USED", "STATE")
    print_table(titles, rows, as_json=as_json)


@command.command(epilog=example("agentsvc keys revoke 2"))
@click.argument("key_id", type=click.IntRange(1, MAX_INT), metavar="ID")
@where_options
def revoke(key_id: int, where: ConfigOptions) -> None:
    """Revoke the key with an ID of `agentsvc keys list`; the server then rejects it."""

    async def body(database: Database) -> None:
        try:
            await KeyRing(database).revoke_key(key_id)
        except NotFound as exc:
            raise CommandFailed(
                f"there is no key {key_id}", "run `agentsvc keys list` to see them"
            ) from exc

    run_on(where.data_directory(), body, noted=("keys revoke", f"{key_id}"))
    click.echo(f"key {key_id} is revoked", err=True)


@command.command(epilog=example("agentsvc keys approve ABCD-EFGH --user ann"))
@click.argument("code", metavar="CODE")
@click.option("--user", metavar="NAME", help="User to log in; optional if there is only one.")
@where_options
def approve(code: str, user: str | None, where: ConfigOptions) -> None:
    """Approve the login of a program that shows CODE.

    The program gets a new key, which `agentsvc keys list` shows.
    """

    async def body(database: Database) -> str:
        keys = KeyRing(database)
        name = user or await _only_user(keys)
        user_id = await keys.find_user(name)
        if user_id is None:
            raise CommandFailed(f"there is no user `{name}`", "run `agentsvc keys list`")
        try:
            await DeviceLogins(database).approve(user_id, code)
        except NotFound as exc:
            raise CommandFailed(
                f"no login is pending with the code {code}", "start the login again; codes expire"
            ) from exc
        return name

    name = run_on(where.data_directory(), body, noted=("keys approve", code))
    click.echo(f"the program is logged in as `{name}`", err=True)


@command.command("rotate-master", epilog=example("agentsvc keys rotate-master"))
@where_options
def rotate_master(where: ConfigOptions) -> None:
    """Replace the master key, and encrypt all stored secrets with the new one.

    The server must be stopped. The old key is kept beside the new one: older backups need it.
    Running sandboxes lose their access to tokens of git providers until they are resumed.
    """
    data_directory = where.data_directory()
    with lock_data_dir(data_directory.path):
        former = asyncio.run(change_master_key(data_directory))
    click.echo(f"the master key is replaced; the old one is {former}", err=True)


def _state(key: ApiKey) -> str:
    if key.revoked_at:
        return f"revoked {key.revoked_at:%Y-%m-%d %H:%M}"
    if key.expires_at:
        word = "expired" if key.expires_at <= now() else "expires"
        return f"{word} {key.expires_at:%Y-%m-%d %H:%M}"
    return "active"


async def _only_user(keys: KeyRing) -> str:
    names = await keys.list_users()
    if len(names) != 1:
        raise CommandFailed(f"there are {len(names)} users", "choose one with --user")
    return names[0]
