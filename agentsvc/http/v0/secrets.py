"""Types and handlers of the older generation for secrets and the tokens of git providers."""

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
    """CustomSecretModel: a secret to keep."""

    name: VariableName
    """Name of the environment variable that has the value in sandboxes; refused if there is a
    secret of that name"""
    value: VariableValue
    """The value; it is never returned"""
    description: Description | None = None
    """What it is for, told to the agent; at most 4096 characters. Null: nothing"""


class SecretChangeBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretWithoutValueModel: the name and the description a secret gets."""

    name: VariableName
    """Name it gets; may be the one it has"""
    description: Description | None = None
    """What it is for, told to the agent; at most 4096 characters. Null: nothing"""


class ProvidersBody(msgspec.Struct, frozen=True, kw_only=True):
    """POSTProviderModel: every git provider's token; those not sent are forgotten."""

    provider_tokens: ProviderTokens = {}
    """Tokens by provider. They replace all that is stored; an empty token keeps the stored one"""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as it is shown."""

    name: str
    """Name of the environment variable that has the value in sandboxes"""
    description: str
    """What it is for; empty if that was not said"""


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """GETCustomSecrets: the secrets of a user, without their values."""

    custom_secrets: list[SecretView]
    """The secrets, by name"""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str
    """What was done, in words"""


_CREATED: Final = Said(message="Secret created successfully")

ROUTES: Final = Routes()


@ROUTES.add("GET", "/api/secrets")
async def get_secrets(request: web.Request) -> SecretList:
    """List secrets by name.

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
    """Keep a new secret.

    Refused (400) if there is one of that name. Conversations that are started from now on have it.
    """
    user_id, value = user_of(request), Secret(body.value)
    with _in_words_of_clients():
        await request.app[SECRETS].add_custom_secret(user_id, body.name, value, body.description)
    return body.name


@ROUTES.add(
    "PUT",
    "/api/secrets/{secret_id}",
    errors=(BadRequest,),
    example={"name": "API_TOKEN", "description": "Of the issue tracker"},
)
async def put_secret(request: web.Request, secret_id: str, body: SecretChangeBody) -> Said:
    """Change the name and the description of a secret.

    Its value stays. Without a description it has an empty one.
    """
    secrets, user_id = request.app[SECRETS], user_of(request)
    with _in_words_of_clients():
        await secrets.rename_custom_secret(user_id, secret_id, body.name, body.description)
    return Said(message="Secret updated successfully")


@ROUTES.add("DELETE", "/api/secrets/{secret_id}")
async def delete_secret(request: web.Request, secret_id: str) -> Said:
    """Forget a secret.

    What asks for it from now on does not get it, running conversations included.
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
    """Keep the tokens of git providers; those not sent are forgotten.

    The whole set is replaced: the token of a provider that is not sent is forgotten. Each token is
    tried at its provider first, and refused (401) if it is not good there.
    """
    tokens = to_token_patches(body.provider_tokens)
    await request.app[GIT_PROVIDERS].store_tokens(user_of(request), tokens)
    return Said(message="Git providers stored")


@ROUTES.add("POST", "/api/unset-provider-tokens")
async def post_unset_providers(request: web.Request) -> Said:
    """Forget the tokens of git providers.

    What asks for them from now on does not get them, running conversations included.
    """
    await request.app[SECRETS].delete_provider_tokens(user_of(request))
    return Said(message="Unset Git provider tokens")


@contextmanager
def _in_words_of_clients() -> Iterator[None]:
    """Refuse with the status and the member in which clients of this generation look."""
    try:
        yield
    except NotFound as exc:
        raise NotFound(exc.message, extra={"error": exc.message}) from exc
    except Conflict as exc:
        raise BadRequest(exc.message, extra={"message": exc.message}) from exc
