"""`agentsvc settings`: shows and changes the settings of a user."""

import json
import sys
from http import HTTPStatus
from typing import Any, Final

import click
import msgspec

from agentsvc.cli import CommandFailed
from agentsvc.cli.client import V1, Api, RequestRefused
from agentsvc.cli.options import example, json_option
from agentsvc.cli.server import ServerChoice, get_api, server_options
from agentsvc.cli.text import clean, json_text

_SETTINGS: Final = f"{V1}/settings"
_PARTS: Final = ("agent_settings", "conversation_settings")
_DIFF: Final = "_diff"
_SECRET_ENDS: Final = ("api_key",)


@click.group(
    "settings",
    epilog=example(
        "agentsvc settings set llm_model anthropic/claude-sonnet-4-5",
        "agentsvc settings set llm_api_key",
    ),
)
def command() -> None:
    """Show and change your settings: language model, limits, confirmation."""


@command.command(epilog=example("agentsvc settings get agent_settings.llm.model"))
@click.argument("key", metavar="[KEY]", required=False)
@json_option
@server_options
def get(key: str | None, *, as_json: bool, server: ServerChoice) -> None:
    """Print all settings, or the one named KEY.

    Keys of nested settings contain dots. Secrets are masked.
    """
    found = _read(get_api(server))
    if key is not None:
        value = _at(found, key)
        click.echo(json_text(value) if as_json or not isinstance(value, str) else value)
        return
    if as_json:
        click.echo(json_text(found))
        return
    for name, value in sorted(_flat(found, "")):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        click.echo(f"{name} = {clean(text)}")


@command.command(
    "set", epilog=example("agentsvc settings set conversation_settings.max_iterations 200")
)
@click.argument("key", metavar="KEY")
@click.argument("value", metavar="[VALUE]", required=False)
@server_options
def set_setting(key: str, value: str | None, *, server: ServerChoice) -> None:
    """Set KEY to VALUE: JSON if it can be parsed, otherwise text. `null` restores the default.

    Without VALUE it is prompted for, or read from standard input; use that for secrets.
    """
    api = get_api(server)
    given = read_value(key) if value is None else value
    setting = _to_value(key, given)
    api.call("POST", _SETTINGS, body=_change(key, setting))
    if setting is not None and not key.endswith(_DIFF):
        # A server ignores unknown keys, for older and newer clients, so check that it knows this one.
        found = _read(api)
        if not _is_hidden(found, key):
            _at(found, key)
    click.echo(f"{key} is set", err=True)


def read_value(name: str) -> str:
    """Return a secret value: prompted for in a terminal, otherwise read from standard input."""
    stdin = sys.stdin
    if stdin.isatty():
        return str(click.prompt(name, hide_input=True, err=True))
    text = stdin.read().removesuffix("\n")
    if not text:
        raise CommandFailed("standard input is empty", f"write the value of {name} to it")
    return text


def _read(api: Api) -> dict[str, Any]:
    try:
        found: dict[str, Any] = api.call("GET", _SETTINGS)
    except RequestRefused as exc:
        if exc.status == HTTPStatus.NOT_FOUND:
            raise CommandFailed(
                "there are no settings yet", "start with `agentsvc settings set llm_model MODEL`"
            ) from exc
        raise
    return found


def _at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            raise CommandFailed(
                f"there is no setting `{key}`", "run `agentsvc settings get` to see them"
            )
        tree = tree[part]
    return tree


def _is_hidden(found: dict[str, Any], key: str) -> bool:
    """Return whether the server omits a setting, as it belongs to another kind of agent."""
    part, _, name = key.partition(".")
    is_acp = found.get("agent_settings", {}).get("agent_kind") == "acp"
    return part == "agent_settings" and name.startswith("acp_") != is_acp


def _flat(tree: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            found.append((prefix + name, value))
    return found


def _change(key: str, value: Any) -> dict[str, Any]:
    """Return the request body that sets one key; a key with dots is a nested setting."""
    first, *rest = key.split(".")
    if not rest:
        return {key: value}
    if first not in _PARTS:
        raise CommandFailed(f"a key with dots must begin with one of: {', '.join(_PARTS)}")
    for part in reversed(rest):
        value = {part: value}
    return {f"{first}{_DIFF}": value}


def _to_value(key: str, text: str) -> Any:
    if key.endswith(_SECRET_ENDS):
        # For null a server keeps the key, for an empty text it deletes it.
        return "" if text == "null" else text
    try:
        # Not `json`, which accepts NaN and Infinity, unlike servers.
        return msgspec.json.decode(text)
    except ValueError:
        return text
