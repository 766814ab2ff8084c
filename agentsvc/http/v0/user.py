"""Handlers of the older generation for what a user has at git providers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from agentsvc.base import GitTokenMissing, NotAuthenticated, now, to_stored
from agentsvc.http.keys import GIT_PROVIDERS, PRINCIPAL
from agentsvc.http.routes import OF_GIT_PROVIDERS, Routes
from agentsvc.http.v0.types_user import (
    BranchesQuery,
    BranchPage,
    BranchSearchQuery,
    BranchView,
    ContentQuery,
    InstallationsQuery,
    MicroagentContent,
    MicroagentView,
    RepositoriesQuery,
    RepositoryView,
    SearchQuery,
    SuggestedTaskView,
    UserView,
    from_account,
    from_branch,
    from_branches,
    from_files,
    from_microagent,
    from_repository,
    from_task,
    to_branch_query,
    to_branch_search,
    to_list_query,
    to_search_query,
)
from agentsvc.http.wire import path_text

PREFIX: Final = "/api/user"

_REPOSITORY: Final = f"{PREFIX}/repository/{{repository_name:.+}}"

ROUTES: Final = Routes(errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", f"{PREFIX}/info")
async def get_info(request: web.Request) -> UserView:
    """Tell who you are at your git provider.

    At the first provider that knows the user's token.
    """
    with _in_words_of_clients():
        account = await request.app[GIT_PROVIDERS].get_account(request[PRINCIPAL].user_id)
    return from_account(account)


@ROUTES.add("GET", f"{PREFIX}/installations", example={"provider": "gitlab"})
async def get_installations(request: web.Request, query: InstallationsQuery) -> list[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Names that `installation_id` of the list of repositories takes.
    """
    provider = query.provider
    with _in_words_of_clients():
        return await request.app[GIT_PROVIDERS].all_installations(
            request[PRINCIPAL].user_id, provider
        )


@ROUTES.add(
    "GET",
    f"{PREFIX}/repositories",
    example={"selected_provider": "github", "page": 1, "per_page": 30},
)
async def get_repositories(request: web.Request, query: RepositoriesQuery) -> list[RepositoryView]:
    """List your repositories at one git provider or at all.

    Not allowed (403) without any token of a provider.
    """
    user_id, wanted = request[PRINCIPAL].user_id, to_list_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, query.page
        )
    link = _link(request, query.page) if found.cursor is not None else None
    return [from_repository(one, link) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/search/repositories", example={"query": "hello"})
async def search_repositories(request: web.Request, query: SearchQuery) -> list[RepositoryView]:
    """Find some of your repositories by name.

    Not allowed (403) without any token of a provider.
    """
    user_id, wanted = request[PRINCIPAL].user_id, to_search_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, 1
        )
    return [from_repository(one) for one in found.items]


@ROUTES.add(
    "GET",
    f"{PREFIX}/search/branches",
    example={"repository": "octocat/hello-world", "query": "fix"},
)
async def search_branches(request: web.Request, query: BranchSearchQuery) -> list[BranchView]:
    """Find branches of a repository by name.

    At the provider where the repository is.
    """
    user_id, wanted = request[PRINCIPAL].user_id, to_branch_search(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].search_branches(
            user_id, query.selected_provider, wanted
        )
    return [from_branch(one) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/suggested-tasks")
async def get_suggested_tasks(request: web.Request) -> list[SuggestedTaskView]:
    """List what there is to do for you at your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, as far as the
    providers tell.
    """
    with _in_words_of_clients():
        tasks = await request.app[GIT_PROVIDERS].suggested_tasks(request[PRINCIPAL].user_id)
    return [from_task(one) for one in tasks]


@ROUTES.add("GET", f"{PREFIX}/repository/branches", example={"repository": "octocat/hello-world"})
async def get_branches(request: web.Request, query: BranchesQuery) -> list[BranchView] | BranchPage:
    """List the branches of a repository: all, or a page if `page` or `per_page` is given.

    At the provider where the repository is.
    """
    wanted, page = to_branch_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].branches_page(
            request[PRINCIPAL].user_id, wanted, page
        )
    return from_branches(found, query)


@ROUTES.add("GET", f"{_REPOSITORY}/microagents")
async def get_microagents(request: web.Request) -> list[MicroagentView]:
    """List the microagents of a repository.

    The files in `.openhands/microagents` of the default branch.
    """
    name = path_text(request, "repository_name")
    with _in_words_of_clients():
        found, changed_at = await request.app[GIT_PROVIDERS].microagents(
            request[PRINCIPAL].user_id, name
        )
    return from_files(found, changed_at or to_stored(now()))


@ROUTES.add(
    "GET",
    f"{_REPOSITORY}/microagents/content",
    example={"file_path": ".openhands/microagents/testing.md"},
)
async def get_microagent(request: web.Request, query: ContentQuery) -> MicroagentContent:
    """Read a microagent of a repository.

    A file of the default branch.
    """
    name = path_text(request, "repository_name")
    path = query.file_path
    with _in_words_of_clients():
        found, provider = await request.app[GIT_PROVIDERS].get_microagent(
            request[PRINCIPAL].user_id, name, path
        )
    return from_microagent(found, path, provider)


def _link(request: web.Request, page: int | None) -> str:
    """Return the header in which clients look for the number of the next page."""
    url = request.rel_url.update_query(page=(page or 1) + 1)
    return f'<{url}>; rel="next"'


@contextmanager
def _in_words_of_clients() -> Iterator[None]:
    """Refuse with the status clients of this generation expect of somebody without a token."""
    try:
        yield
    except GitTokenMissing as exc:
        raise NotAuthenticated("Git provider token required. (such as GitHub).") from exc
