"""Handlers of what a user has at git providers."""

from collections.abc import Callable
from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest, decode_cursor, encode_cursor
from agentsvc.git import BranchQuery, Listing
from agentsvc.http.keys import GIT_PROVIDERS, PRINCIPAL
from agentsvc.http.routes import OF_GIT_PROVIDERS, Routes
from agentsvc.http.v1.types_git import (
    BranchesQuery,
    BranchView,
    InstallationsQuery,
    RepositoriesQuery,
    RepositoryView,
    SuggestedTaskView,
    TasksQuery,
    from_branch,
    from_repository,
    from_task,
    to_cursor,
    to_query,
)
from agentsvc.http.wire import Page

PREFIX: Final = "/api/v1/git"

ROUTES: Final = Routes(PREFIX, errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", "/installations/search", example={"provider": "gitlab"})
async def search_installations(request: web.Request, query: InstallationsQuery) -> Page[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Names that `installation_id` of the search of repositories takes. Not allowed (403) without a
    token for the provider.
    """
    found = await request.app[GIT_PROVIDERS].search_installations(
        request[PRINCIPAL].user_id, query.provider, to_cursor(query.page_id), query.limit
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
        request[PRINCIPAL].user_id, query.provider, to_query(query)
    )
    return _page(found, from_repository)


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
        request[PRINCIPAL].user_id, query.provider, wanted
    )
    return _page(found, from_branch)


@ROUTES.add("GET", "/suggested-tasks/search", example={"limit": 10})
async def search_suggested_tasks(
    request: web.Request, query: TasksQuery
) -> Page[SuggestedTaskView]:
    """List what there is to do for you at your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, as far as the
    providers tell.
    """
    [first] = (0,) if query.page_id is None else decode_cursor(query.page_id, int)
    tasks = await request.app[GIT_PROVIDERS].suggested_tasks(request[PRINCIPAL].user_id)
    end = max(first, 0) + query.limit
    items = [from_task(one) for one in tasks[end - query.limit : end]]
    next_page_id = encode_cursor(end) if end < len(tasks) else None
    return Page(items=items, next_page_id=next_page_id)


def _page[T, S](found: Listing[T], show: Callable[[T], S]) -> Page[S]:
    next_page_id = None if found.cursor is None else encode_cursor(found.cursor)
    return Page(items=[show(one) for one in found.items], next_page_id=next_page_id)
