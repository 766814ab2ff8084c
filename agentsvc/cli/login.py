"""`agentsvc login`: stores the server that other commands use, and a key for it."""

import sys
import time
from http import HTTPStatus
from typing import Annotated, Final

import click
import msgspec

from agentsvc.base import Secret, monotonic, replace_private
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, RequestRefused
from agentsvc.cli.options import example
from agentsvc.cli.server import StoredLogin, login_file

_DEVICE: Final = "/oauth/device"
_WAITING: Final = ("authorization_pending", "slow_down")

type _Seconds = Annotated[int, msgspec.Meta(ge=0, le=86_400)]


class _Offer(msgspec.Struct, frozen=True):
    """A device login; the fields that are printed and opened are validated."""

    verification_uri_complete: Annotated[
        str, msgspec.Meta(pattern=r"^https?://[^\0-\x20\x7f-\x9f]+\Z")
    ]
    user_code: Annotated[str, msgspec.Meta(pattern=r"^[!-~]+\Z")]
    device_code: str
    interval: _Seconds
    expires_in: _Seconds


@click.command(
    "login",
    epilog=example(
        "agentsvc login https://agents.example.org",
        "agentsvc login http://127.0.0.1:8000 --key - <key.txt",
    ),
)
@click.argument("url", metavar="URL")
@click.option("--key", "api_key", metavar="KEY", help="API key; `-` reads it from standard input.")
def command(url: str, api_key: str | None) -> None:
    """Log in to the server at URL; other commands use it until `agentsvc logout`.

    Without --key, you log in with a browser if the server allows that; otherwise the key is prompted
    for.
    """
    api = Api(url, Secret(""))
    if api_key == "-":
        api_key = sys.stdin.readline().strip()
    if api_key == "":
        raise CommandFailed("the key is empty", "omit --key to log in with a browser")
    key = api_key or _log_in_by_browser(api) or click.prompt("API key", hide_input=True, err=True)
    me = Api(url, Secret(key)).call("GET", "/api/keys/current")
    try:
        who = f"{me['user_name']} ({me['role']})"
    except (KeyError, TypeError) as exc:
        raise api.no_server() from exc
    file = login_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_private(file, msgspec.json.encode(StoredLogin(url=api.url, key=key)).decode())
    click.echo(f"logged in at {api.url} as {who}")


def _log_in_by_browser(api: Api) -> str:
    """Log in with a browser and return the key; return "" if the server does not offer that."""
    try:
        offer = msgspec.convert(api.call("POST", f"{_DEVICE}/authorize"), _Offer)
    except msgspec.ValidationError as exc:
        raise api.no_server() from exc
    except RequestRefused as exc:
        if exc.status == HTTPStatus.NOT_FOUND:
            return ""
        raise
    page, wait = offer.verification_uri_complete, offer.interval
    deadline = monotonic() + offer.expires_in
    click.echo(f"open {page}\nand approve the program with the code {offer.user_code}", err=True)
    click.launch(page)
    asked = {"device_code": offer.device_code}
    while monotonic() < deadline:
        time.sleep(wait)
        try:
            token: str = api.call("POST", f"{_DEVICE}/token", body=asked)["access_token"]
        except RequestRefused as exc:
            if exc.error not in _WAITING:
                raise
            wait += exc.error == "slow_down"
        except (KeyError, TypeError) as exc:
            raise api.no_server() from exc
        else:
            return token
    raise CommandFailed("the login was not approved in time")
