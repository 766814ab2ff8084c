"""Handlers of a user's secrets and git provider tokens; values are never returned."""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.base import BadRequest, Conflict, NotFound, Problems, Secret, with_check
from agentsvc.domain import NamedServers, Provider, read_mcp_map
from agentsvc.http.keys import GIT_PROVIDERS, SECRETS, SETTINGS, user_of
from agentsvc.http.routes import Routes, shown_as
from agentsvc.http.v1.types_agent_settings import refuse_many
from agentsvc.http.wire import Page, PageQuery, page_by_name
from agentsvc.settings import (
    ProviderTokenPatch,
    ProviderTokens,
    SettingsPatch,
    VariableName,
    VariableValue,
    merge,
    to_token_patches,
)

type Description = Annotated[str, msgspec.Meta(max_length=4096)]


class SecretQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of secrets; `name__contains` matches a part of the name."""

    name_contains: str = msgspec.field(default="", name="name__contains")
    """Part of the name, ignoring case; empty: all secrets"""


class NewSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret to store."""

    name: VariableName
    """Name of the secret and of its environment variable in sandboxes; replaces a secret of the
    same name"""
    value: VariableValue
    """Value of the secret; neither this operation nor the list of secrets returns it"""
    description: Description | None = None
    """Description for the agent, at most 4096 characters. Null: no description"""


class SecretChange(msgspec.Struct, frozen=True, kw_only=True):
    """A new name and description of a secret; its value does not change."""

    name: VariableName
    """New name, which may be the present one. Refused if another secret has it"""
    description: Description | None = None
    """Description for the agent, at most 4096 characters. Null or omitted: cleared"""


class SecretInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    """Name of the secret and of its environment variable in sandboxes"""
    description: str | None
    """Description of the secret; null or empty if it has none"""


class GitProviders(msgspec.Struct, frozen=True, kw_only=True):
    """The git provider tokens of a user; an empty token keeps the stored one."""

    provider_tokens: ProviderTokens = {}
    """Tokens by provider. They replace all stored tokens: the token of a provider that is missing
    here is deleted, an empty token keeps the stored one"""
    mcp_config: Annotated[Any, shown_as(NamedServers), with_check(read_mcp_map)] = UNSET
    """Tool servers to store with the tokens, by name; null or omitted: unchanged"""


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a change."""

    message: str
    """Confirmation, for people"""


class GitProvidersStored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Confirmation, with the providers that could not validate their token."""

    message: str
    """Confirmation, for people"""
    unchecked: list[Provider] | UnsetType = UNSET
    """Providers that were unavailable when their token was to be validated; their tokens are stored
    nevertheless. Omitted if all tokens were validated"""


ROUTES: Final = Routes("/api/v1/secrets")


@ROUTES.add("GET", "/search", example={"name__contains": "TOKEN", "limit": 10})
async def search_secrets(request: web.Request, query: SecretQuery) -> Page[SecretInfo]:
    """List your secrets.

    Sorted by name, without their values.
    """
    found = await request.app[SECRETS].custom_secret_names(user_of(request))
    wanted = [
        SecretInfo(name=name, description=found[name])
        for name in sorted(found)
        if query.name_contains.lower() in name.lower()
    ]
    return page_by_name(wanted, query.page_id, query.limit, lambda one: one.name)


@ROUTES.add(
    "POST",
    "",
    status=HTTPStatus.CREATED,
    example={"name": "DEPLOY_KEY", "value": "not so secret", "description": "For the staging host"},
)
async def post_secret(request: web.Request, body: NewSecret) -> Edited:
    """Store a secret.

    Replaces a secret of the same name. Conversations that are started from now on have the secret.
    A name that is not valid for an environment variable is refused.
    """
    await request.app[SECRETS].set_custom_secret(
        user_of(request), body.name, Secret(body.value), body.description
    )
    return Edited(message="Secret created successfully")


@ROUTES.add(
    "POST", "/git-providers", example={"provider_tokens": {"github": {"token": "an access token"}}}
)
async def post_git_providers(request: web.Request, body: GitProviders) -> GitProvidersStored:
    """Store your git provider tokens.

    Replaces all tokens: the token of a provider that is missing in the request is deleted. Each
    token is validated at its provider first, and refused (401) if the provider rejects it.
    """
    user_id = user_of(request)
    patch, tokens = _changes(body)
    if patch is not None:  # an invalid patch must not change the tokens
        merge(await request.app[SETTINGS].get(user_id), patch)
    unchecked = await request.app[GIT_PROVIDERS].store_tokens(user_id, tokens)
    if patch is not None:
        await request.app[SETTINGS].patch(user_id, patch)
    return GitProvidersStored(message="Git providers stored", unchecked=unchecked or UNSET)


@ROUTES.add("DELETE", "/git-providers")
async def delete_git_providers(request: web.Request) -> Edited:
    """Delete all your git provider tokens.

    Running conversations cannot read them any more, either.
    """
    await request.app[SECRETS].delete_provider_tokens(user_of(request))
    return Edited(message="Unset Git provider tokens")


@ROUTES.add(
    "PUT",
    "/{secret_id}",
    errors=(BadRequest,),
    example={"name": "API_TOKEN", "description": "Of the issue tracker"},
)
async def put_secret(request: web.Request, secret_id: str, body: SecretChange) -> Edited:
    """Change the name and description of a secret.

    Its value does not change. Without a description in the request it is cleared.
    """
    user_id, description = user_of(request), body.description or ""
    try:
        await request.app[SECRETS].rename_custom_secret(user_id, secret_id, body.name, description)
    except Conflict as exc:
        raise BadRequest(exc.message) from exc
    return Edited(message="Secret updated successfully")


@ROUTES.add("DELETE", "/{secret_id}")
async def delete_secret(request: web.Request, secret_id: str) -> Edited:
    """Delete a secret.

    Running conversations cannot read it any more, either.
    """
    if not await request.app[SECRETS].delete_custom_secret(user_of(request), secret_id):
        raise NotFound(f"Secret with ID {secret_id} not found")
    return Edited(message="Secret deleted successfully")


def _changes(body: GitProviders) -> tuple[SettingsPatch | None, dict[Provider, ProviderTokenPatch]]:
    """Parse the changes to the tool servers and the tokens; raises InvalidRequest."""
    problems = Problems()
    patch: SettingsPatch | None = None
    tokens: dict[Provider, ProviderTokenPatch] = {}
    with problems.noted():
        if body.mcp_config not in (UNSET, None):
            refuse_many(body.mcp_config, loc=("body", "mcp_config"))
            servers = read_mcp_map(body.mcp_config, loc=("body", "mcp_config"))
            patch = SettingsPatch(mcp_config=servers)
    with problems.noted():
        tokens = to_token_patches(body.provider_tokens)
    problems.refuse()
    return patch, tokens
