"""Types and handlers of what a user has at git providers."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from agentsvc.base import BadRequest, copy_to, decode_cursor, encode_cursor
from agentsvc.domain import Provider
from agentsvc.git import BranchQuery, Listing, RepositoryQuery, SortBy
from agentsvc.http.git_views import BranchFields, RepositoryFields, TaskFields
from agentsvc.http.keys import GIT_PROVIDERS, user_of
from agentsvc.http.routes import OF_GIT_PROVIDERS, Routes
from agentsvc.http.wire import Limit, Page, PageQuery, page_at, page_offset

SHORT_PAGE: Final = 30

type Words = Annotated[str, Meta(max_length=256)]
type RepositoryName = Annotated[str, Meta(min_length=1, max_length=1024)]


class SortOrder(StrEnum):
    """What found repositories are sorted by, as far as the provider can."""

    STARS_DESC = "stars-desc"
    STARS_ASC = "stars-asc"
    FORKS_DESC = "forks-desc"
    FORKS_ASC = "forks-asc"
    UPDATED_DESC = "updated-desc"
    UPDATED_ASC = "updated-asc"


class InstallationsQuery(PageQuery, frozen=True, kw_only=True):
    """At which provider."""

    provider: Provider
    """The git hosting service to ask, with the user's token"""


class RepositoriesQuery(InstallationsQuery, frozen=True, kw_only=True):
    """Which repositories are listed: your own, or those of them whose names have the words."""

    query: Words | None = None
    """Words to find in names; left out: the user's own repositories"""
    installation_id: Words | None = None
    """Only those of this installation, workspace, group or organization, as `installations/search`
    names it; left out: of all"""
    sort_order: SortOrder | None = None
    """What found repositories are sorted by; only together with `query`. Left out: as the provider
    does"""


class BranchesQuery(InstallationsQuery, frozen=True, kw_only=True):
    """Which branches are listed; `query` is a part of the name, and may be empty."""

    repository: RepositoryName
    """The repository, as `owner/name`"""
    query: Words
    """Part of the name of a branch; empty: all branches"""
    limit: Limit = SHORT_PAGE


class TasksQuery(PageQuery, frozen=True, kw_only=True):
    """Which suggested tasks are listed."""

    limit: Limit = SHORT_PAGE


class RepositoryView(RepositoryFields, frozen=True, kw_only=True):
    """A repository; null stands for what its provider does not tell."""

    full_name: str
    """`owner/name`, which `selected_repository` takes"""
    link_header: None = None
    """Always null"""


class BranchView(BranchFields, frozen=True, kw_only=True):
    """A branch; null stands for what its provider does not tell."""


class SuggestedTaskView(TaskFields, frozen=True, kw_only=True):
    """Something to do, with which a conversation can start."""


def to_query(query: RepositoriesQuery) -> RepositoryQuery:
    """Return which repositories are asked for."""
    name, _, direction = (query.sort_order or f"{SortBy.PUSHED}-desc").partition("-")
    return RepositoryQuery(
        text=(query.query or "").strip(),
        installation_id=query.installation_id or None,
        sort=SortBy(name),
        is_ascending=direction == "asc",
        cursor=to_cursor(query.page_id),
        limit=query.limit,
    )


def to_cursor(page_id: str | None) -> str | None:
    """Return what a provider needs to find a page; raises InvalidRequest."""
    return None if page_id is None else decode_cursor(page_id, str)[0]


ROUTES: Final = Routes("/api/v1/git", errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", "/installations/search", example={"provider": "gitlab"})
async def search_installations(request: web.Request, query: InstallationsQuery) -> Page[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Names that `installation_id` of the search of repositories takes. Not allowed (403) without a
    token for the provider.
    """
    found = await request.app[GIT_PROVIDERS].search_installations(
        user_of(request), query.provider, to_cursor(query.page_id), query.limit
    )
    return _page(found, str)


@ROUTES.add(
    "GET",
    "/repositories/search",
    example={"provider": "github", "query": "hello", "sort_order": "stars-desc"},
)
async def search_repositories(
    request: web.Request, query: RepositoriesQuery
) -> Page[RepositoryView]:
    """List your repositories at a git provider, or find some of them by name.

    Not allowed (403) without a token for the provider.
    """
    if query.sort_order is not None and not query.query:
        raise BadRequest("`sort_order` needs a `query`")
    found = await request.app[GIT_PROVIDERS].search_repositories(
        user_of(request), query.provider, to_query(query)
    )
    return _page(found, partial(copy_to, RepositoryView))


@ROUTES.add(
    "GET",
    "/branches/search",
    example={"provider": "github", "repository": "octocat/hello-world", "query": ""},
)
async def search_branches(request: web.Request, query: BranchesQuery) -> Page[BranchView]:
    """List the branches of a repository, or find some of them by name.

    Not allowed (403) without a token for the provider.
    """
    wanted = BranchQuery(
        repository=query.repository,
        text=query.query.strip(),
        cursor=to_cursor(query.page_id),
        limit=query.limit,
    )
    found = await request.app[GIT_PROVIDERS].search_branches(
        user_of(request), query.provider, wanted
    )
    return _page(found, partial(copy_to, BranchView))


@ROUTES.add("GET", "/suggested-tasks/search", example={"limit": 10})
async def search_suggested_tasks(
    request: web.Request, query: TasksQuery
) -> Page[SuggestedTaskView]:
    """List what there is to do for you at your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, as far as the
    providers tell.
    """
    offset = page_offset(query.page_id)
    tasks = await request.app[GIT_PROVIDERS].suggested_tasks(user_of(request))
    return page_at([copy_to(SuggestedTaskView, one) for one in tasks], offset, query.limit)


def _page[T, S](found: Listing[T], show: Callable[[T], S]) -> Page[S]:
    next_page_id = None if found.cursor is None else encode_cursor(found.cursor)
    return Page(items=[show(one) for one in found.items], next_page_id=next_page_id)
