"""Handlers of the older generation for what a user has at git providers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from agentsvc.base import GitTokenMissing, NotAuthenticated, now, to_stored
from agentsvc.http.keys import GIT_PROVIDERS, PRINCIPAL
from agentsvc.http.routes import OF_GIT_PROVIDERS, Example, Route, Scope
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
from agentsvc.http.wire import json_response, path_text, read_query

PREFIX: Final = "/api/user"

_REPOSITORY: Final = f"{PREFIX}/repository/{{repository_name:.+}}"


async def get_info(request: web.Request) -> web.Response:
    """Tell who somebody is at the git provider: GET /api/user/info.

    At the first provider that knows the user's token.
    """
    with _in_words_of_clients():
        account = await request.app[GIT_PROVIDERS].get_account(request[PRINCIPAL].user_id)
    return json_response(from_account(account))


async def get_installations(request: web.Request) -> web.Response:
    """List installations, workspaces, groups or organizations: GET /api/user/installations.

    Names that `installation_id` of the list of repositories takes.
    """
    provider = read_query(request, InstallationsQuery).provider
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].all_installations(
            request[PRINCIPAL].user_id, provider
        )
    return json_response(found)


async def get_repositories(request: web.Request) -> web.Response:
    """List repositories: GET /api/user/repositories.

    Not allowed (403) without any token of a provider.
    """
    query = read_query(request, RepositoriesQuery)
    user_id, wanted = request[PRINCIPAL].user_id, to_list_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, query.page
        )
    link = _link(request, query.page) if found.cursor is not None else None
    return json_response([from_repository(one, link) for one in found.items])


async def search_repositories(request: web.Request) -> web.Response:
    """Find repositories by name: GET /api/user/search/repositories.

    Not allowed (403) without any token of a provider.
    """
    query = read_query(request, SearchQuery)
    user_id, wanted = request[PRINCIPAL].user_id, to_search_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, 1
        )
    return json_response([from_repository(one) for one in found.items])


async def get_branches(request: web.Request) -> web.Response:
    """List branches: GET /api/user/repository/branches.

    At the provider where the repository is.
    """
    query = read_query(request, BranchesQuery)
    wanted, page = to_branch_query(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].branches_page(
            request[PRINCIPAL].user_id, wanted, page
        )
    return json_response(from_branches(found, query))


async def search_branches(request: web.Request) -> web.Response:
    """Find branches by name: GET /api/user/search/branches.

    At the provider where the repository is.
    """
    query = read_query(request, BranchSearchQuery)
    user_id, wanted = request[PRINCIPAL].user_id, to_branch_search(query)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].search_branches(
            user_id, query.selected_provider, wanted
        )
    return json_response([from_branch(one) for one in found.items])


async def get_suggested_tasks(request: web.Request) -> web.Response:
    """List what there is to do: GET /api/user/suggested-tasks.

    Pull requests with conflicts, failing checks or open comments, and issues, as far as the
    providers tell.
    """
    with _in_words_of_clients():
        tasks = await request.app[GIT_PROVIDERS].suggested_tasks(request[PRINCIPAL].user_id)
    return json_response([from_task(one) for one in tasks])


async def get_microagents(request: web.Request) -> web.Response:
    """List the microagents of a repository: GET /api/user/repository/{name}/microagents.

    The files in `.openhands/microagents` of the default branch.
    """
    name = path_text(request, "repository_name")
    with _in_words_of_clients():
        found, changed_at = await request.app[GIT_PROVIDERS].microagents(
            request[PRINCIPAL].user_id, name
        )
    return json_response(from_files(found, changed_at or to_stored(now())))


async def get_microagent(request: web.Request) -> web.Response:
    """Read a microagent: GET /api/user/repository/{name}/microagents/content.

    A file of the default branch.
    """
    name = path_text(request, "repository_name")
    path = read_query(request, ContentQuery).file_path
    with _in_words_of_clients():
        found, provider = await request.app[GIT_PROVIDERS].get_microagent(
            request[PRINCIPAL].user_id, name, path
        )
    return json_response(from_microagent(found, path, provider))


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


ROUTES: Final = (
    Route(
        method="GET",
        path=f"{PREFIX}/info",
        handler=get_info,
        scope=Scope.READ,
        rank="P3",
        summary="Tell who you are at your git provider",
        answer=UserView,
        errors=OF_GIT_PROVIDERS,
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/installations",
        handler=get_installations,
        scope=Scope.READ,
        rank="P3",
        summary="List your installations, workspaces, groups or organizations at a git provider",
        query=InstallationsQuery,
        answer=list[str],
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"provider": "gitlab"}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/repositories",
        handler=get_repositories,
        scope=Scope.READ,
        rank="P3",
        summary="List your repositories at one git provider or at all",
        query=RepositoriesQuery,
        answer=list[RepositoryView],
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"selected_provider": "github", "page": 1, "per_page": 30}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/search/repositories",
        handler=search_repositories,
        scope=Scope.READ,
        rank="P3",
        summary="Find some of your repositories by name",
        query=SearchQuery,
        answer=list[RepositoryView],
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"query": "hello"}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/search/branches",
        handler=search_branches,
        scope=Scope.READ,
        rank="P3",
        summary="Find branches of a repository by name",
        query=BranchSearchQuery,
        answer=list[BranchView],
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"repository": "octocat/hello-world", "query": "fix"}),
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/suggested-tasks",
        handler=get_suggested_tasks,
        scope=Scope.READ,
        rank="P3",
        summary="List what there is to do for you at your git providers",
        answer=list[SuggestedTaskView],
        errors=OF_GIT_PROVIDERS,
    ),
    Route(
        method="GET",
        path=f"{PREFIX}/repository/branches",
        handler=get_branches,
        scope=Scope.READ,
        rank="P3",
        summary="List the branches of a repository: all, or a page if `page` or `per_page` is given",
        query=BranchesQuery,
        answer=list[BranchView] | BranchPage,
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"repository": "octocat/hello-world"}),
    ),
    Route(
        method="GET",
        path=f"{_REPOSITORY}/microagents",
        handler=get_microagents,
        scope=Scope.READ,
        rank="P3",
        summary="List the microagents of a repository",
        answer=list[MicroagentView],
        errors=OF_GIT_PROVIDERS,
    ),
    Route(
        method="GET",
        path=f"{_REPOSITORY}/microagents/content",
        handler=get_microagent,
        scope=Scope.READ,
        rank="P3",
        summary="Read a microagent of a repository",
        query=ContentQuery,
        answer=MicroagentContent,
        errors=OF_GIT_PROVIDERS,
        example=Example(query={"file_path": ".openhands/microagents/testing.md"}),
    ),
)
