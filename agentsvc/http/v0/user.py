"""Types and handlers of the older generation for what a user has at git providers."""

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
    """At which provider."""

    provider: Provider
    """The git hosting service to ask, with the user's token"""


class RepositoriesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which repositories to list: a page of them if one is named, else all."""

    sort: Literal["pushed", "updated", "created", "full_name"] = "pushed"
    """What the list is sorted by; `full_name` from A to Z, the others the latest first"""
    selected_provider: Provider | None = None
    """The git hosting service to ask; left out: every one the user has a token for"""
    page: PageNumber | None = None
    """Page of the list, counted from 1; left out: all of it"""
    per_page: PerPage | None = None
    """Repositories on a page; left out: 100"""
    installation_id: Words | None = None
    """Only those of this installation, workspace, group or organization; left out: of all"""


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which repositories to find."""

    query: Words
    """Words to find in names"""
    per_page: PerPage = 5
    """Most repositories to return"""
    sort: Literal["stars", "forks", "updated"] = "stars"
    """What the list is sorted by"""
    order: Literal["asc", "desc"] = "desc"
    """Whether it begins with the least or with the most"""
    selected_provider: Provider | None = None
    """The git hosting service to ask; left out: every one the user has a token for"""


class BranchesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose branches to list: a page of them if one is named, else all."""

    repository: RepositoryName
    """The repository, as `owner/name`"""
    page: PageNumber | None = None
    """Page of the list, counted from 1; left out together with `per_page`: all of it"""
    per_page: PerPage | None = None
    """Branches on a page; left out together with `page`: all of them"""


class BranchSearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which branches to find; `query` is a part of the name."""

    repository: RepositoryName
    """The repository, as `owner/name`"""
    query: Words
    """Part of the name of a branch; empty: all branches"""
    per_page: PerPage = _SHORT_PAGE
    """Most branches to return"""
    selected_provider: Provider | None = None
    """The git hosting service to ask; left out: the one where the repository is found"""


class ContentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which microagent to read."""

    file_path: FilePath
    """Path of the microagent in the repository, as the list of microagents has it"""


class UserView(Account, frozen=True, kw_only=True):
    """User: who somebody is at the git provider."""


class RepositoryView(RepositoryFields, frozen=True, kw_only=True):
    """Repository: null stands for what its provider does not tell."""


class BranchView(BranchFields, frozen=True, kw_only=True):
    """Branch: null stands for what its provider does not tell."""


class BranchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of branches."""

    branches: list[BranchView]
    """The branches of the page"""
    has_next_page: bool
    """Whether there is a further page"""
    current_page: int
    """Number of the page, counted from 1"""
    per_page: int
    """Branches on a page"""
    total_count: int | None
    """Number of all branches; null where the provider does not tell"""


class SuggestedTaskView(TaskFields, frozen=True, kw_only=True):
    """SuggestedTask: something to do, with which a conversation can start."""


class MicroagentView(msgspec.Struct, frozen=True, kw_only=True):
    """MicroagentResponse: a microagent without its content."""

    name: str
    """Name of the microagent"""
    path: str
    """Its path in the repository"""
    created_at: str
    """When it was added, ISO 8601; empty if the provider does not tell"""


class MicroagentContent(msgspec.Struct, frozen=True, kw_only=True):
    """MicroagentContentResponse: a microagent."""

    content: str
    """Its text, in Markdown"""
    path: str
    """Its path in the repository"""
    triggers: list[str]
    """Words in a message that call for it"""
    git_provider: Provider
    """Where the repository is"""


PREFIX: Final = "/api/user"

_REPOSITORY: Final = f"{PREFIX}/repository/{{repository_name:.+}}"

ROUTES: Final = Routes(errors=OF_GIT_PROVIDERS)


@ROUTES.add("GET", f"{PREFIX}/info")
async def get_info(request: web.Request) -> UserView:
    """Tell who you are at your git provider.

    At the first provider that knows the user's token.
    """
    with _in_words_of_clients():
        account = await request.app[GIT_PROVIDERS].get_account(user_of(request))
    return copy_to(UserView, account)


@ROUTES.add("GET", f"{PREFIX}/installations", example={"provider": "gitlab"})
async def get_installations(request: web.Request, query: InstallationsQuery) -> list[str]:
    """List your installations, workspaces, groups or organizations at a git provider.

    Names that `installation_id` of the list of repositories takes.
    """
    with _in_words_of_clients():
        return await request.app[GIT_PROVIDERS].all_installations(user_of(request), query.provider)


@ROUTES.add(
    "GET",
    f"{PREFIX}/repositories",
    example={"selected_provider": "github", "page": 1, "per_page": 30},
)
async def get_repositories(request: web.Request, query: RepositoriesQuery) -> list[RepositoryView]:
    """List your repositories at one git provider or at all.

    Unauthorized (401) without any token of a provider.
    """
    user_id, sort = user_of(request), SortBy(query.sort)
    wanted = RepositoryQuery(
        installation_id=query.installation_id or None,
        sort=sort,
        is_ascending=sort is SortBy.NAME,
        limit=query.per_page or PAGE_MAX,
    )
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].repositories_page(
            user_id, query.selected_provider, wanted, query.page
        )
    link = _link(request, query.page) if found.cursor is not None else None
    return [copy_to(RepositoryView, one, link_header=link) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/search/repositories", example={"query": "hello"})
async def search_repositories(request: web.Request, query: SearchQuery) -> list[RepositoryView]:
    """Find some of your repositories by name.

    Unauthorized (401) without any token of a provider.
    """
    user_id, text, sort = user_of(request), query.query.strip(), SortBy(query.sort)
    is_ascending, limit = query.order == "asc", query.per_page
    wanted = RepositoryQuery(text=text, sort=sort, is_ascending=is_ascending, limit=limit)
    with _in_words_of_clients():
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

    At the provider where the repository is.
    """
    user_id, text = user_of(request), query.query.strip()
    wanted = BranchQuery(repository=query.repository, text=text, limit=query.per_page)
    with _in_words_of_clients():
        found = await request.app[GIT_PROVIDERS].search_branches(
            user_id, query.selected_provider, wanted
        )
    return [copy_to(BranchView, one) for one in found.items]


@ROUTES.add("GET", f"{PREFIX}/suggested-tasks")
async def get_suggested_tasks(request: web.Request) -> list[SuggestedTaskView]:
    """List what there is to do for you at your git providers.

    Pull requests with conflicts, failing checks or open comments, and issues, as far as the
    providers tell.
    """
    with _in_words_of_clients():
        tasks = await request.app[GIT_PROVIDERS].suggested_tasks(user_of(request))
    return [copy_to(SuggestedTaskView, one) for one in tasks]


@ROUTES.add("GET", f"{PREFIX}/repository/branches", example={"repository": "octocat/hello-world"})
async def get_branches(request: web.Request, query: BranchesQuery) -> list[BranchView] | BranchPage:
    """List the branches of a repository: all, or a page if `page` or `per_page` is given.

    At the provider where the repository is.
    """
    is_page = query.page is not None or query.per_page is not None
    page, per_page = query.page or 1, query.per_page or _SHORT_PAGE
    whole = BranchQuery(repository=query.repository)
    wanted = msgspec.structs.replace(whole, limit=per_page) if is_page else whole
    with _in_words_of_clients():
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
    with _in_words_of_clients():
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
    with _in_words_of_clients():
        found, provider = await request.app[GIT_PROVIDERS].get_microagent(
            user_of(request), repository_name, path
        )
    return copy_to(MicroagentContent, found, path=path, git_provider=provider)


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
