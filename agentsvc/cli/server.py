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
    """What the options of a command say of the server it is for."""

    url: str | None
    key: str | None = msgspec.field(name="api_key")


_url_option: Decorator = click.option(
    "--url",
    metavar="URL",
    help=f"Server to talk to; otherwise {URL_VARIABLE}, then that of the login, then the one on the"
    " data directory.",
)
_key_option: Decorator = click.option(
    "--key",
    "api_key",
    metavar="KEY",
    help=f"API key; otherwise {KEY_VARIABLE}, then that of the login, then one of the data directory.",
)
_server_options: Final = as_struct(
    "server", ServerChoice, config_option, data_dir_option, _key_option, _url_option
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose a server, as `server`.

    An answer that has another form than the command reads ends it in one line. Without an answer,
    what goes wrong is no fault of a server's.
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
                f"the server's answer is not understood: {type(exc).__name__}: {exc} ({where})",
                "see whether --url is right, and whether the server is as old as this command;"
                " if both are so, the mistake may be the command's: report it",
            ) from exc

    return _server_options(called)


class IdParam(click.ParamType[str]):
    """The id of something that a search lists, or its beginning; shells complete it."""

    name = "id"

    def __init__(self, path: str) -> None:
        self._path = path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the latest ones, with their titles; none where no server answers."""
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
    """Give a command the server, and what its argument names there, as `api` and `found`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(*, named: str, server: ServerChoice, **options: Any) -> Any:
            api = get_api(server)
            return command(api=api, found=find(api, named), **options)

        argument: Decorator = click.argument("named", type=kind, metavar=metavar)
        return argument(server_options(called))

    return decorate


class StoredLogin(msgspec.Struct, frozen=True, kw_only=True):
    """The server that commands are for until `agentsvc logout`."""

    url: str
    key: str


def login_file() -> Path:
    """Return where `agentsvc login` keeps the server and the key."""
    return schema.config_dir(os.environ) / "login.json"


def find_login() -> StoredLogin | None:
    """Return who is logged in where, if anybody is."""
    try:
        return msgspec.json.decode(login_file().read_bytes(), type=StoredLogin)
    except (OSError, msgspec.DecodeError):
        return None


def find_api(chosen: ServerChoice) -> Api | None:
    """Return the server to talk to, or None where none is named and none runs beside this command."""
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
        hint = f"name it with --key, or in {KEY_VARIABLE}"
        raise CommandFailed(f"there is no key for {where}", hint)
    known = _read(data_directory.command_key)
    return Api(
        local,
        Secret(known) if known else make_key(data_directory),
        renew=(lambda: make_key(data_directory)) if known else None,
    )


def get_api(chosen: ServerChoice) -> Api:
    """Return the server to talk to; raises CommandFailed where there is none."""
    api = find_api(chosen)
    if api is None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            # Of a directory that this user may not look into it is not known.
            data_dir_of(chosen.load()).url.stat()
        hint = "start one with `agentsvc serve`, or log in to one with `agentsvc login URL`"
        raise CommandFailed("no server runs on the data directory", hint)
    return api


def make_key(data_directory: DataDirectory) -> Secret:
    """Make a key for commands, and keep it; what that takes is loaded only then."""
    key: Secret = importlib.import_module("agentsvc.cli.commandkey").make_key(data_directory)
    return key


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
