"""Wire structs and handlers of V0 for secrets and git provider tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import BadRequest, Conflict, NotFound, Secret
from agentsvc.http.keys import GIT_PROVIDERS, SECRETS, user_of
from agentsvc.http.routes import Routes, effect_of
from agentsvc.settings import ProviderTokens, VariableName, VariableValue, to_token_patches

type Description = Annotated[str, Meta(max_length=4096)]


class SecretBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretModel: a secret to store."""

    name: VariableName
    """Name of the secret and of its environment variable in sandboxes; refused if another secret
    has it"""
    value: VariableValue
    """Value of the secret; it is never returned"""
    description: Description | None = None
    """Description for the agent, at most 4096 characters. Null: no description"""


class SecretChangeBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretWithoutValueModel: the new name and description of a secret."""

    name: VariableName
    """New name, which may be the present one"""
    description: Description | None = None
    """Description for the agent, at most 4096 characters. Null: no description"""


class ProvidersBody(msgspec.Struct, frozen=True, kw_only=True):
    """POSTProviderModel: all git provider tokens of a user; tokens that are missing are deleted."""

    provider_tokens: ProviderTokens = {}
    """Tokens by provider. They replace all stored tokens; an empty token keeps the stored one"""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    """Name of the secret and of its environment variable in sandboxes"""
    description: str
    """Description of the secret; empty if it has none"""


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """GETCustomSecrets: the secrets of a user, without their values."""

    custom_secrets: list[SecretView]
    """The secrets, by name"""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a change."""

    message: str
    """Confirmation, for people"""


_CREATED: Final = Said(message="Secret created successfully")

ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/secrets")
async def get_secrets(request: web.Request) -> SecretList:
    """List your secrets.

    Without their values.
    """
    names = await request.app[SECRETS].custom_secret_names(user_of(request))
    views = [SecretView(name=name, description=text or "") for name, text in names.items()]
    return SecretList(custom_secrets=views)


@ROUTES.add(
    "POST",
    "/api/secrets",
    Said,
    effect=effect_of(str, lambda _: _CREATED, status=HTTPStatus.CREATED),
    errors=(BadRequest,),
    example={"name": "DEPLOY_KEY", "value": "not so secret", "description": "For the staging host"},
)
async def post_secret(request: web.Request, body: SecretBody) -> str:
    """Store a new secret.

    Refused (400) if a secret has the name. Conversations that are started from now on have the
    secret.
    """
    user_id, value = user_of(request), Secret(body.value)
    with _as_v0_errors():
        await request.app[SECRETS].add_custom_secret(user_id, body.name, value, body.description)
    return body.name


@ROUTES.add(
    "PUT",
    "/api/secrets/{secret_id}",
    errors=(BadRequest,),
    example={"name": "API_TOKEN", "description": "Of the issue tracker"},
)
async def put_secret(request: web.Request, secret_id: str, body: SecretChangeBody) -> Said:
    """Change the name and description of a secret.

    Its value does not change. Without a description in the request it is cleared.
    """
    secrets, user_id = request.app[SECRETS], user_of(request)
    with _as_v0_errors():
        await secrets.rename_custom_secret(user_id, secret_id, body.name, body.description)
    return Said(message="Secret updated successfully")


@ROUTES.add("DELETE", "/api/secrets/{secret_id}")
async def delete_secret(request: web.Request, secret_id: str) -> Said:
    """Delete a secret.

    Running conversations cannot read it any more, either.
    """
    if not await request.app[SECRETS].delete_custom_secret(user_of(request), secret_id):
        message = f"Secret with ID {secret_id} not found"
        raise NotFound(message, extra={"error": message})
    return Said(message="Secret deleted successfully")


@ROUTES.add(
    "POST",
    "/api/add-git-providers",
    example={"provider_tokens": {"github": {"token": "an access token"}}},
)
async def post_providers(request: web.Request, body: ProvidersBody) -> Said:
    """Store your git provider tokens.

    Replaces all tokens: the token of a provider that is missing in the request is deleted. Each
    token is validated at its provider first, and refused (401) if the provider rejects it.
    """
    tokens = to_token_patches(body.provider_tokens)
    await request.app[GIT_PROVIDERS].store_tokens(user_of(request), tokens)
    return Said(message="Git providers stored")


@ROUTES.add("POST", "/api/unset-provider-tokens")
async def post_unset_providers(request: web.Request) -> Said:
    """Delete all your git provider tokens.

    Running conversations cannot read them any more, either.
    """
    await request.app[SECRETS].delete_provider_tokens(user_of(request))
    return Said(message="Unset Git provider tokens")


@contextmanager
def _as_v0_errors() -> Iterator[None]:
    """Convert errors to the statuses and fields that V0 clients expect."""
    try:
        yield
    except NotFound as exc:
        raise NotFound(exc.message, extra={"error": exc.message}) from exc
    except Conflict as exc:
        raise BadRequest(exc.message, extra={"message": exc.message}) from exc
