"""Handlers of the catalogue of language models."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import decode_cursor, encode_cursor
from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Routes
from agentsvc.http.wire import Limit, Page
from agentsvc.models import Model, ModelProvider

PREFIX: Final = "/api/v1/config"

_LIMIT: Final = 50

type Words = Annotated[str, msgspec.Meta(max_length=1000)]


class ProviderQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which providers are listed; `query` is a part of the name."""

    query: Words = ""
    """Part of the name, upper or lower case, at most 1000 characters; empty: all"""
    verified: bool | None = msgspec.field(default=None, name="verified__eq")
    """True lists only verified ones, false only the others; left out: both"""
    page_id: str | None = None
    limit: Limit = _LIMIT


class ModelQuery(ProviderQuery, frozen=True, kw_only=True):
    """Which models are listed; `query` is a part of the name."""

    provider: Words | None = msgspec.field(default=None, name="provider__eq")
    """Only models of this provider; left out: of all"""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A language model; `provider/name` is what goes into the settings."""

    provider: str | None
    """Who offers the model; null where its name says no provider"""
    name: str
    """Name of the model at its provider; `provider/name` is the value of `llm_model`"""
    verified: bool
    """Whether agents are known to work well with the model"""
    hidden: bool = False
    """Always false: a front end shows every model"""
    canonical: str | None = None
    """Always null: no model is listed under two names"""


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who offers language models."""

    name: str
    """Name of the provider, the part of `llm_model` before the slash"""
    verified: bool
    """Whether any of its models is verified"""


ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/models/search", example={"provider__eq": "anthropic", "verified__eq": "true"})
async def search_models(request: web.Request, query: ModelQuery) -> Page[ModelInfo]:
    """List language models, verified ones first.

    What this server knows; a model that is not here can be used as well.
    """
    models = (await request.app[CATALOGUE].get()).models
    return _page([_from_model(one) for one in models if _fits(one, query)], query)


@ROUTES.add("GET", "/providers/search", example={"limit": 10})
async def search_providers(request: web.Request, query: ProviderQuery) -> Page[ProviderInfo]:
    """List who offers language models, verified ones first.

    What this server knows; a provider that is not here can be used as well.
    """
    providers = (await request.app[CATALOGUE].get()).providers
    return _page([_from_provider(one) for one in providers if _fits(one, query)], query)


def _fits(entry: Model | ModelProvider, query: ProviderQuery) -> bool:
    provider = query.provider if isinstance(query, ModelQuery) else None
    return (
        query.query.lower() in entry.name.lower()
        and query.verified in (None, entry.is_verified)
        and (provider is None or (isinstance(entry, Model) and entry.provider == provider))
    )


def _page[T](items: Sequence[T], query: ProviderQuery) -> Page[T]:
    [offset] = (0,) if query.page_id is None else decode_cursor(query.page_id, int)
    end = max(offset, 0) + query.limit
    return Page(
        items=list(items[end - query.limit : end]),
        next_page_id=encode_cursor(end) if end < len(items) else None,
    )


def _from_model(model: Model) -> ModelInfo:
    return ModelInfo(provider=model.provider, name=model.name, verified=model.is_verified)


def _from_provider(provider: ModelProvider) -> ProviderInfo:
    return ProviderInfo(name=provider.name, verified=provider.is_verified)
