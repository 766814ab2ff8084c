"""Handlers of the catalogue of language models."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.catalogue import Model, ModelProvider
from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Example, Route, Scope
from agentsvc.http.wire import Limit, Page, json_response, read_query
from agentsvc.values import decode_cursor, encode_cursor

PREFIX: Final = "/api/v1/config"

_LIMIT: Final = 50

type Words = Annotated[str, msgspec.Meta(max_length=1000)]


class ProviderQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which providers are listed; `query` is a part of the name."""

    query: Words = ""
    verified: bool | None = msgspec.field(default=None, name="verified__eq")
    page_id: str | None = None
    limit: Limit = _LIMIT


class ModelQuery(ProviderQuery, frozen=True, kw_only=True):
    """Which models are listed; `query` is a part of the name."""

    provider: Words | None = msgspec.field(default=None, name="provider__eq")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A language model; `provider/name` is what goes into the settings."""

    provider: str | None
    name: str
    verified: bool
    hidden: bool = False
    canonical: str | None = None


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who offers language models."""

    name: str
    verified: bool


async def search_models(request: web.Request) -> web.Response:
    """GET /config/models/search."""
    query = read_query(request, ModelQuery)
    models = (await request.app[CATALOGUE].get()).models
    return json_response(_page([_from_model(one) for one in models if _fits(one, query)], query))


async def search_providers(request: web.Request) -> web.Response:
    """GET /config/providers/search."""
    query = read_query(request, ProviderQuery)
    providers = (await request.app[CATALOGUE].get()).providers
    return json_response(
        _page([_from_provider(one) for one in providers if _fits(one, query)], query)
    )


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


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{PREFIX}/models/search",
        handler=search_models,
        scope=Scope.READ,
        rank="P2",
        summary="List language models, verified ones first",
        query=ModelQuery,
        answer=Page[ModelInfo],
        example=Example(query={"provider__eq": "anthropic", "verified__eq": "true"}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/providers/search",
        handler=search_providers,
        scope=Scope.READ,
        rank="P2",
        summary="List who offers language models, verified ones first",
        query=ProviderQuery,
        answer=Page[ProviderInfo],
        example=Example(query={"limit": 10}),
    ),
)
