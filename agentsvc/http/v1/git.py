"""Wire structs and handlers for a user's repositories, branches and tasks at git providers."""

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
    """Sort orders of found repositories, if the provider supports them."""

    STARS_DESC = "stars-desc"
    STARS_ASC = "stars-asc"
    FORKS_DESC = "forks-desc"
    FORKS_ASC = "forks-asc"
    UPDATED_DESC = "updated-desc"
    UPDATED_ASC = "updated-asc"


class InstallationsQuery(PageQuery, frozen=True, kw_only=True):
    """Query for installations at a git provider."""

    provider: Provider
    """Git hosting service to query with the user's token"""


class RepositoriesQuery(InstallationsQuery, frozen=True, kw_only=True):
    """Query for your repositories, all or those that match a text."""

    query: Words | None = None
    """Words to find in names; omitted: the user's own repositories"""
    installation_id: Words | None = None
    """Only repositories of this installation, workspace, group or organization, with the name from
    `installations/search`; omitted: of all"""
    sort_order: SortOrder | None = None
    """Sort order of found repositories; requires `query`. Omitted: the order of the provider"""


class BranchesQuery(InstallationsQuery, frozen=True, kw_only=True):
    """Query for branches; `query` matches a part of the name and may be empty."""

    repository: RepositoryName
    """Repository, as `owner/name`"""
    query: Words
    """Part of the branch name; empty: all branches"""
    limit: Limit = SHORT_PAGE


class TasksQuery(PageQuery, frozen=True, kw_only=True):
    """Query for suggested tasks."""

    limit: Limit = SHORT_PAGE


class RepositoryView(RepositoryFields, frozen=True, kw_only=True):
    """A repository; values that its provider does not report are null."""

    full_name: str
    """`owner/name`; pass it as `selected_repository`"""
    link_header: None = None
    """Always null"""


class BranchView(BranchFields, frozen=True, kw_only=True):
    """A branch; values that its provider does not report are null."""


class SuggestedTaskView(TaskFields, frozen=True, kw_only=True):
    """A suggested task: an issue or pull request from which a conversation can start."""


def to_query(query: RepositoriesQuery) -> RepositoryQuery:
    """Convert the query to that of the git domain; raises InvalidRequest for an invalid page id."""
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
    """Decode a page id to the cursor of the provider; raises InvalidRequest."""
    return None if page_id is None else decode_cursor(page_id, str)[0]


ROUTES: Final = Routes("/api/v1/git", errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", "/installations/search", example={"provider": "gitlab"})
async def search_installations(request: web.Request, query: InstallationsQuery) -> Page[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Pass a name as `installation_id` to the search of repositories. Not allowed (403) without a
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
    """List your repositories at a git provider, or find repositories by name.

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
    """List the branches of a repository, or find branches by name.

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
    """List suggested tasks from your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, if the provider
    reports them.
    """
    offset = page_offset(query.page_id)
    tasks = await request.app[GIT_PROVIDERS].suggested_tasks(user_of(request))
    return page_at([copy_to(SuggestedTaskView, one) for one in tasks], offset, query.limit)


def _page[T, S](found: Listing[T], show: Callable[[T], S]) -> Page[S]:
    next_page_id = None if found.cursor is None else encode_cursor(found.cursor)
    return Page(items=[show(one) for one in found.items], next_page_id=next_page_id)
