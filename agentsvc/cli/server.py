"""Chooses the server and key of a command: options, environment, or the local data directory."""

import contextlib
import functools
import importlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.shell_completion import CompletionItem

from agentsvc.base import AgentsvcError, Secret
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api
from agentsvc.cli.options import (
    ConfigOptions,
    Decorator,
    as_struct,
    config_option,
    data_dir_of,
    data_dir_option,
    pop_struct,
)
from agentsvc.cli.text import SHORT_ID, short
from agentsvc.config import KEY_VARIABLE, URL_VARIABLE, DataDirectory, schema


class ServerChoice(ConfigOptions, frozen=True, kw_only=True):
    """The options that select the server of a command."""

    url: str | None
    key: str | None = msgspec.field(name="api_key")


_url_option: Decorator = click.option(
    "--url",
    metavar="URL",
    help=f"URL of the server; default: {URL_VARIABLE}, then that of the login, then that of the"
    " server on the data directory.",
)
_key_option: Decorator = click.option(
    "--key",
    "api_key",
    metavar="KEY",
    help=f"API key; default: {KEY_VARIABLE}, then that of the login, then one of the data directory.",
)
_server_options: Final = as_struct(
    "server", ServerChoice, config_option, data_dir_option, _key_option, _url_option
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a server to a command, passed as `server`.

    After a response, an exception such as KeyError becomes CommandFailed, because the response has an
    unexpected format. Without one it is a bug of the command, and propagates.
    """

    @functools.wraps(command)
    def called(**options: Any) -> Any:
        before = Api.answers
        try:
            return command(**options)
        except UnicodeError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            if Api.answers == before:
                raise
            place = traceback.extract_tb(exc.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            raise CommandFailed(
                f"unexpected response of the server: {type(exc).__name__}: {exc} ({where})",
                "check that --url is correct, and that the server has the version of this command;"
                " if so, report this as a bug",
            ) from exc

    return _server_options(called)


class IdParam(click.ParamType[str]):
    """An id of an item of a search, or a prefix of one, with shell completion."""

    name = "id"

    def __init__(self, path: str) -> None:
        self._path = path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the ids of the latest items, with titles; empty if no server responds."""
        try:
            api = find_api(pop_struct(ServerChoice, dict(ctx.params)))
            found = api.call("GET", f"{self._path}/search")["items"] if api else []
        except (AgentsvcError, click.ClickException):
            return []
        return [
            CompletionItem(one["id"][:SHORT_ID], help=short(one.get("title") or one.get("status")))
            for one in found
            if one["id"].startswith(incomplete.lower())
        ]


def found_options(
    find: Callable[[Api, str], dict[str, Any]], kind: IdParam | None = None, metavar: str = "ID"
) -> Decorator:
    """Add the server options and an ID argument; pass the client as `api`, the item as `found`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(*, named: str, server: ServerChoice, **options: Any) -> Any:
            api = get_api(server)
            return command(api=api, found=find(api, named), **options)

        argument: Decorator = click.argument("named", type=kind, metavar=metavar)
        return argument(server_options(called))

    return decorate


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """The server that commands use until `agentsvc logout`."""

    url: str
    key: str


def login_file() -> Path:
    """Return the path of the file in which `agentsvc login` stores server and key."""
    return schema.config_dir(os.environ) / "login.json"


def find_login() -> StoredLogin | None:
    """Return the stored login, or None."""
    try:
        return msgspec.json.decode(login_file().read_bytes(), type=StoredLogin)
    except (OSError, msgspec.DecodeError):
        return None


def find_api(chosen: ServerChoice) -> Api | None:
    """Return a client of the selected server, or None if none is selected and none runs here."""
    url = chosen.url or os.environ.get(URL_VARIABLE)
    key = chosen.key or os.environ.get(KEY_VARIABLE)
    if (
        not chosen.data_dir
        and (login := find_login())
        and (not url or url.rstrip("/") == login.url)
    ):
        url, key = login.url, key or login.key
    if url and key:
        return Api(url, Secret(key))
    data_directory = data_dir_of(chosen.load())
    local = _read(data_directory.url) if data_directory.is_in_use() else ""
    if not url and not local:
        return None
    if key:
        return Api(url or local, Secret(key))
    if url and url.rstrip("/") != local:
        where = Api(url, Secret("")).url
        hint = f"pass it with --key, or in {KEY_VARIABLE}"
        raise CommandFailed(f"there is no key for {where}", hint)
    known = _read(data_directory.command_key)
    return Api(
        local,
        Secret(known) if known else make_key(data_directory),
        renew=(lambda: make_key(data_directory)) if known else None,
    )


def get_api(chosen: ServerChoice) -> Api:
    """Return a client of the selected server; raises CommandFailed if there is none."""
    api = find_api(chosen)
    if api is None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Raise PermissionError if this user may not read the data directory.
            data_dir_of(chosen.load()).url.stat()
        hint = "start one with `agentsvc serve`, or log in to one with `agentsvc login URL`"
        raise CommandFailed("no server runs on the data directory", hint)
    return api


def make_key(data_directory: DataDirectory) -> Secret:
    """Create and store a key for commands; imports the database code only when needed."""
    key: Secret = importlib.import_module("agentsvc.cli.commandkey").make_key(data_directory)
    return key


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
