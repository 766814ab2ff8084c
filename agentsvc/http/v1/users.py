"""Handlers of the user who asks."""

from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import NotAllowed, NotAuthenticated
from agentsvc.domain import Provider
from agentsvc.git import GitAccount
from agentsvc.http.keys import GIT_PROVIDERS, PRINCIPAL, SANDBOXES, SETTINGS
from agentsvc.http.routes import OF_GIT_PROVIDERS, READS_ONLY, Routes
from agentsvc.http.v1.types_settings import Expose, UserView, from_user
from agentsvc.http.wire import json_response

PREFIX: Final = "/api/v1/users"


class UserGitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The user at the git provider."""

    id: str
    """Id of the account at the provider"""
    login: str
    """Name of the account"""
    avatar_url: str
    """URL of the account's picture; empty if it has none"""
    company: str | None
    """Company the account names; null if none"""
    name: str | None
    """Name the account shows; null if none"""
    email: str | None
    """E-mail address the account shows; null if none"""


class GitOrganizations(msgspec.Struct, frozen=True, kw_only=True):
    """The organizations, groups or workspaces of the user at the git provider."""

    provider: Provider
    """The provider they are at"""
    organizations: list[str]
    """Their names"""


ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/me", UserView, errors=(NotAllowed,))
async def get_me(request: web.Request, query: Expose) -> web.Response:
    """Return yourself with your settings.

    The same as the settings, with who one is. Secrets are shown only to somebody who asks for them
    and also has the key of a running sandbox of the user.
    """
    is_revealed = query.expose_secrets
    if is_revealed:
        await _require_sandbox(request)
    user = request[PRINCIPAL]
    settings = await request.app[SETTINGS].get(user.user_id)
    return json_response(from_user(user, settings, is_revealed=is_revealed))


@ROUTES.add("GET", "/git-info", errors=OF_GIT_PROVIDERS)
async def get_git_info(request: web.Request) -> UserGitInfo:
    """Return who you are at your git provider.

    At the first provider that knows the user's token.
    """
    account = await request.app[GIT_PROVIDERS].get_account(request[PRINCIPAL].user_id)
    return _from_account(account)


@ROUTES.add("GET", "/git-organizations", errors=OF_GIT_PROVIDERS)
async def get_git_organizations(request: web.Request) -> GitOrganizations:
    """List your organizations, groups or workspaces at your git provider.

    At the first provider that knows the user's token.
    """
    provider, names = await request.app[GIT_PROVIDERS].get_organizations(request[PRINCIPAL].user_id)
    return GitOrganizations(provider=provider, organizations=names)


async def _require_sandbox(request: web.Request) -> None:
    """Raise NotAuthenticated or NotAllowed without the key of a running sandbox of the user."""
    if not request[PRINCIPAL].may_run:
        raise NotAllowed(READS_ONLY)
    key = request.headers.get("X-Session-API-Key", "").strip()
    if not key or not key.isascii():
        raise NotAuthenticated("X-Session-API-Key of a running sandbox is required")
    sandbox = await request.app[SANDBOXES].identify(key)
    if sandbox.user_id != request[PRINCIPAL].user_id:
        raise NotAllowed("The sandbox belongs to another user")


def _from_account(account: GitAccount) -> UserGitInfo:
    return UserGitInfo(**msgspec.structs.asdict(account))
