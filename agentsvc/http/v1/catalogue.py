"""Handlers of the catalogue of language models."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import copy_to
from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Routes
from agentsvc.http.wire import Limit, Page, PageQuery, page_at, page_offset
from agentsvc.models import Model, ModelProvider

_LIMIT: Final = 50
_NAMES: Final = {"is_verified": "verified"}

type Words = Annotated[str, msgspec.Meta(max_length=1000)]


class ProviderQuery(PageQuery, frozen=True, kw_only=True):
    """Filters of model providers; `query` matches a part of the name."""

    query: Words = ""
    """Part of the name, ignoring case, at most 1000 characters; empty: all"""
    verified: bool | None = msgspec.field(default=None, name="verified__eq")
    """True lists only verified entries, false only the others; omitted: both"""
    limit: Limit = _LIMIT


class ModelQuery(ProviderQuery, frozen=True, kw_only=True):
    """Filters of models; `query` matches a part of the name."""

    provider: Words | None = msgspec.field(default=None, name="provider__eq")
    """Only models of this provider; omitted: of all providers"""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A language model; its setting is written `provider/name`."""

    provider: str | None
    """Provider of the model; null if its name has no provider"""
    name: str
    """Name of the model at its provider; `provider/name` is the value of `llm_model`"""
    is_verified: bool
    """Whether agents are known to work well with the model"""
    hidden: bool = False
    """Always false: a front end shows every model"""
    canonical: str | None = None
    """Always null: no model is listed under two names"""


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True, rename=_NAMES):
    """A provider of language models."""

    name: str
    """Name of the provider, the part of `llm_model` before the slash"""
    is_verified: bool
    """Whether any of its models is verified"""


ROUTES: Final = Routes("/api/v1/config")


@ROUTES.add("GET", "/models/search", example={"provider__eq": "anthropic", "verified__eq": "true"})
async def search_models(request: web.Request, query: ModelQuery) -> Page[ModelInfo]:
    """List language models, verified ones first.

    The list is a suggestion: models that are not listed can be used, too.
    """
    models = (await request.app[CATALOGUE].get()).models
    found = [copy_to(ModelInfo, one) for one in models if _fits(one, query)]
    return page_at(found, page_offset(query.page_id), query.limit)


@ROUTES.add("GET", "/providers/search", example={"limit": 10})
async def search_providers(request: web.Request, query: ProviderQuery) -> Page[ProviderInfo]:
    """List providers of language models, verified ones first.

    The list is a suggestion: providers that are not listed can be used, too.
    """
    providers = (await request.app[CATALOGUE].get()).providers
    found = [copy_to(ProviderInfo, one) for one in providers if _fits(one, query)]
    return page_at(found, page_offset(query.page_id), query.limit)


def _fits(entry: Model | ModelProvider, query: ProviderQuery) -> bool:
    provider = query.provider if isinstance(query, ModelQuery) else None
    return (
        query.query.lower() in entry.name.lower()
        and query.verified in (None, entry.is_verified)
        and (provider is None or (isinstance(entry, Model) and entry.provider == provider))
    )
