"""Wire structs and handlers of V0 for repositories, branches and tasks at git providers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import GitTokenMissing, NotAuthenticated, copy_to, now, stated, to_stored
from agentsvc.domain import Provider
from agentsvc.git import BranchQuery, RepositoryQuery, SortBy
from agentsvc.http.git_views import Account, BranchFields, RepositoryFields, TaskFields
from agentsvc.http.keys import GIT_PROVIDERS, user_of
from agentsvc.http.routes import OF_GIT_PROVIDERS, Routes

PAGE_MAX: Final = 100
_SHORT_PAGE: Final = 30

type Words = Annotated[str, Meta(max_length=256)]
type RepositoryName = Annotated[str, Meta(min_length=1, max_length=1024)]
type FilePath = Annotated[str, Meta(min_length=1, max_length=1024), stated(pattern=r"\.md\Z")]
type PageNumber = Annotated[int, Meta(ge=1, le=100_000)]
type PerPage = Annotated[int, Meta(ge=1, le=PAGE_MAX)]


class InstallationsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for installations at a git provider."""

    provider: Provider
    """Git hosting service to query with the user's token"""


class RepositoriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for your repositories: a page if `page` is given, otherwise all."""

    sort: Literal["pushed", "updated", "created", "full_name"] = "pushed"
    """Sort key; `full_name` sorts from A to Z, the others latest first"""
    selected_provider: Provider | None = None
    """Git hosting service to query; omitted: all for which the user has a token"""
    page: PageNumber | None = None
    """Page number, starting at 1; omitted: all repositories"""
    per_page: PerPage | None = None
    """Repositories per page; omitted: 100"""
    installation_id: Words | None = None
    """Only repositories of this installation, workspace, group or organization; omitted: of all"""


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for a search of repositories."""

    query: Words
    """Words to find in names"""
    per_page: PerPage = 5
    """Maximum number of repositories to return"""
    sort: Literal["stars", "forks", "updated"] = "stars"
    """Sort key"""
    order: Literal["asc", "desc"] = "desc"
    """Sort direction: ascending or descending"""
    selected_provider: Provider | None = None
    """Git hosting service to query; omitted: all for which the user has a token"""


class BranchesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the branches of a repository: a page if `page` or `per_page` is given, else all."""

    repository: RepositoryName
    """Repository, as `owner/name`"""
    page: PageNumber | None = None
    """Page number, starting at 1; omitted together with `per_page`: all branches"""
    per_page: PerPage | None = None
    """Branches per page; omitted together with `page`: all branches"""


class BranchSearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for a search of branches; `query` matches a part of the name."""

    repository: RepositoryName
    """Repository, as `owner/name`"""
    query: Words
    """Part of the branch name; empty: all branches"""
    per_page: PerPage = _SHORT_PAGE
    """Maximum number of branches to return"""
    selected_provider: Provider | None = None
    """Git hosting service to query; omitted: the one at which the repository is found"""


class ContentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the text of a microagent."""

    file_path: FilePath
    """Path of the microagent in the repository, from the list of microagents"""


class UserView(Account, frozen=True, kw_only=True):
    """User: the user's account at the git provider."""


class RepositoryView(RepositoryFields, frozen=True, kw_only=True):
    """Repository; values that its provider does not report are null."""


class BranchView(BranchFields, frozen=True, kw_only=True):
    """Branch; values that its provider does not report are null."""


class BranchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of branches."""

    branches: list[BranchView]
    """The branches of the page"""
    has_next_page: bool
    """Whether there is a next page"""
    current_page: int
    """Page number, starting at 1"""
    per_page: int
    """Branches per page"""
    total_count: int | None
    """Number of all branches; null if the provider does not report it"""


class SuggestedTaskView(TaskFields, frozen=True, kw_only=True):
    """SuggestedTask: an issue or pull request from which a conversation can start."""


class MicroagentView(msgspec.Struct, frozen=True, kw_only=True):
    """MicroagentResponse: a microagent without its content."""

    name: str
    """Name of the microagent"""
    path: str
    """Path of the microagent in the repository"""
    created_at: str
    """Time of the last change of the directory, ISO 8601; the present time if it is unknown"""


class MicroagentContent(msgspec.Struct, frozen=True, kw_only=True):
    """MicroagentContentResponse: a microagent with its content."""

    content: str
    """Text of the microagent, in Markdown"""
    path: str
    """Path of the microagent in the repository"""
    triggers: list[str]
    """Words in a message that trigger the microagent"""
    git_provider: Provider
    """Git provider of the repository"""


PREFIX: Final = "/api/user"

_REPOSITORY: Final = f"{PREFIX}/repository/{{repository_name:.+}}"

ROUTES: Final = Routes(errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", f"{PREFIX}/info")
async def get_info(request: web.Request) -> UserView:
    """Get your account at your git provider.

    From the first provider that accepts the user's token.
    """
    with _as_v0_errors():
        account = await request.app[GIT_PROVIDERS].get_account(user_of(request))
    return copy_to(UserView, account)


@ROUTES.add("GET", f"{PREFIX}/installations", example={"provider": "gitlab"})
async def get_installations(request: web.Request, query: InstallationsQuery) -> list[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Pass a name as `installation_id` to the list of repositories.
    """
    with _as_v0_errors():
        return await request.app[GIT_PROVIDERS].all_installations(user_of(request), query.provider)


@ROUTES.add(
    "GET",
    f"{PREFIX}/repositories",
    example={"selected_provider": "github", "page": 1, "per_page": 30},
)
async def get_repositories(request: web.Request, query: RepositoriesQuery) -> list[RepositoryView]:
    """List your repositories at one or all git providers.

    Unauthorized (401) without a token for any provider.
    """
    user_id, sort = user_of(request), SortBy(query.sort)
    wanted = RepositoryQuery(
        installation_id=query.installation_id or None,
        sort=sort,
        is_ascending=sort is SortBy.NAME,
        limit=query.per_page or PAGE_MAX,
    )
    with _as_v0_errors():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, query.page
        )
    link = _link(request, query.page) if found.cursor is not None else None
    return [copy_to(RepositoryView, one, link_header=link) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/search/repositories", example={"query": "hello"})
async def search_repositories(request: web.Request, query: SearchQuery) -> list[RepositoryView]:
    """Find repositories by name.

    Unauthorized (401) without a token for any provider.
    """
    user_id, text, sort = user_of(request), query.query.strip(), SortBy(query.sort)
    is_ascending, limit = query.order == "asc", query.per_page
    wanted = RepositoryQuery(text=text, sort=sort, is_ascending=is_ascending, limit=limit)
    with _as_v0_errors():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, 1
        )
    return [copy_to(RepositoryView, one) for one in found.items]


@ROUTES.add(
    "GET",
    f"{PREFIX}/search/branches",
    example={"repository": "octocat/hello-world", "query": "fix"},
)
async def search_branches(request: web.Request, query: BranchSearchQuery) -> list[BranchView]:
    """Find branches of a repository by name.

    At the provider of the repository.
    """
    user_id, text = user_of(request), query.query.strip()
    wanted = BranchQuery(repository=query.repository, text=text, limit=query.per_page)
    with _as_v0_errors():
        found = await request.app[GIT_PROVIDERS].search_branches(
            user_id, query.selected_provider, wanted
        )
    return [copy_to(BranchView, one) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/suggested-tasks")
async def get_suggested_tasks(request: web.Request) -> list[SuggestedTaskView]:
    """List suggested tasks from your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, if the provider
    reports them.
    """
    with _as_v0_errors():
        tasks = await request.app[GIT_PROVIDERS].suggested_tasks(user_of(request))
    return [copy_to(SuggestedTaskView, one) for one in tasks]


@ROUTES.add("GET", f"{PREFIX}/repository/branches", example={"repository": "octocat/hello-world"})
async def get_branches(request: web.Request, query: BranchesQuery) -> list[BranchView] | BranchPage:
    """List the branches of a repository: all, or a page if `page` or `per_page` is given.

    At the provider of the repository.
    """
    is_page = query.page is not None or query.per_page is not None
    page, per_page = query.page or 1, query.per_page or _SHORT_PAGE
    whole = BranchQuery(repository=query.repository)
    wanted = msgspec.structs.replace(whole, limit=per_page) if is_page else whole
    with _as_v0_errors():
        found = await request.app[GIT_PROVIDERS].branches_page(
            user_of(request), wanted, page if is_page else None
        )
    views = [copy_to(BranchView, one) for one in found.items]
    if not is_page:
        return views
    return BranchPage(
        branches=views,
        has_next_page=found.cursor is not None,
        current_page=page,
        per_page=per_page,
        total_count=found.total,
    )


@ROUTES.add("GET", f"{_REPOSITORY}/microagents")
async def get_microagents(request: web.Request, repository_name: str) -> list[MicroagentView]:
    """List the microagents of a repository.

    The files in `.openhands/microagents` of the default branch.
    """
    with _as_v0_errors():
        found, changed_at = await request.app[GIT_PROVIDERS].microagents(
            user_of(request), repository_name
        )
    created_at = changed_at or to_stored(now())
    return [copy_to(MicroagentView, one, created_at=created_at) for one in found]


@ROUTES.add(
    "GET",
    f"{_REPOSITORY}/microagents/content",
    example={"file_path": ".openhands/microagents/testing.md"},
)
async def get_microagent(
    request: web.Request, repository_name: str, query: ContentQuery
) -> MicroagentContent:
    """Read a microagent of a repository.

    A file of the default branch.
    """
    path = query.file_path
    with _as_v0_errors():
        found, provider = await request.app[GIT_PROVIDERS].get_microagent(
            user_of(request), repository_name, path
        )
    return copy_to(MicroagentContent, found, path=path, git_provider=provider)


def _link(request: web.Request, page: int | None) -> str:
    """Return the `Link` header value in which clients look for the number of the next page."""
    url = request.rel_url.update_query(page=(page or 1) + 1)
    return f'<{url}>; rel="next"'


@contextmanager
def _as_v0_errors() -> Iterator[None]:
    """Convert GitTokenMissing to the error that V0 clients expect."""
    try:
        yield
    except GitTokenMissing as exc:
        raise NotAuthenticated("Git provider token required. (such as GitHub).") from exc
