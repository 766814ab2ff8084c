"""Handlers of the GitHub App of a user."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import (
    BadRequest,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    SentSecret,
    checked_by,
    matching,
)
from agentsvc.extension.git import check_host
from agentsvc.extension.web import PRINCIPAL, SUCCESS, Routes, Success

from .github_app import AppKeys, GithubApp, GithubApps
from .routes import PREFIX

APPS: Final[web.AppKey[GithubApps]] = web.AppKey("automations_github_apps")
_PATH: Final = "/github-app"

type AppId = Annotated[
    str, matching(r"\A[A-Za-z0-9._-]{1,64}\Z", "of 1 to 64 letters, digits, `.`, `_` and `-`")
]


class AppOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A GitHub App, for the automations of a user."""

    app_id: AppId
    """Its App ID, or its client ID"""
    private_key: Annotated[SentSecret, Meta(max_length=4000)] = ""
    """A private key of it, as GitHub has made it: RSA in PEM. Empty or left out: the stored one stays"""
    webhook_secret: Annotated[SentSecret, Meta(max_length=200)] = ""
    """Secret of its webhook; empty or left out: the stored one stays. Without any, it delivers nothing"""
    host: Annotated[str, Meta(max_length=1000), checked_by(check_host)] | None = None
    """Host of GitHub Enterprise; null: github.com"""


class AppInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A GitHub App, without its secrets."""

    app_id: str
    """Its App ID, or its client ID"""
    slug: str
    """What GitHub calls it in addresses; its account is `slug[bot]`"""
    host: str | None
    """Host of GitHub Enterprise; null: github.com"""
    events_path: str
    """Path that its webhook delivers to, for all repositories"""
    has_webhook_secret: bool
    """Whether deliveries are taken"""


ROUTES: Final = Routes()


@ROUTES.add("GET", _PATH, errors=(NotFound,))
async def get_github_app(request: web.Request) -> AppInfo:
    """Show your GitHub App.

    Its key and its secret are not shown.
    """
    return _shown(request, await request.app[APPS].get(request[PRINCIPAL].user_id))


@ROUTES.add(
    "PUT",
    _PATH,
    errors=(
        BadRequest,
        NotAuthenticated,
        NotAllowed,
        GitProviderRateLimited,
        GitProviderUnavailable,
    ),
    example={"app_id": "123456", "private_key": "a key in PEM", "host": "github.example.com"},
)
async def put_github_app(request: web.Request, body: AppOrder) -> AppInfo:
    """Let automations act as a GitHub App.

    It is asked for at GitHub first, and refused (401) if the key is not one of it. From then on, what
    automations of this user do at GitHub is done as this App, where it is installed, and not with the
    token of the user. Conversations never get its tokens. A key that is sent takes the place of the
    stored one at once.
    """
    keys = AppKeys(private_key=body.private_key, webhook_secret=body.webhook_secret)
    user_id = request[PRINCIPAL].user_id
    stored = await request.app[APPS].store(user_id, body.app_id, keys, body.host or None)
    return _shown(request, stored)


@ROUTES.add("DELETE", _PATH, errors=(NotFound,))
async def delete_github_app(request: web.Request) -> Success:
    """Forget your GitHub App.

    Automations use the token of the user again, if there is one.
    """
    await request.app[APPS].delete(request[PRINCIPAL].user_id)
    return SUCCESS


def _shown(request: web.Request, app: GithubApp) -> AppInfo:
    return AppInfo(
        app_id=app.app_id,
        slug=app.slug,
        host=app.host,
        events_path=f"{PREFIX}/events/{app.id}",
        has_webhook_secret=bool(request.app[APPS].keys_of(app).webhook_secret),
    )
