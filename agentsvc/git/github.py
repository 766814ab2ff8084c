"""GitHub, at github.com, with data residency at ghe.com, or an Enterprise Server of one's own."""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from agentsvc.base import InvalidRequest, NotAllowed, NotFound
from agentsvc.domain import Provider, SuggestedTask, TaskType
from agentsvc.git.client import Answer
from agentsvc.git.hosting import (
    INSTALLATION_LOC,
    Hosting,
    Places,
    bad_cursor,
    next_number,
    number_of,
    quoted_path,
)
from agentsvc.git.model import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    Number,
    OwnerType,
    Repository,
    RepositoryQuery,
    SortBy,
)


class User(Struct, frozen=True):
    """A user with what only the user tells."""

    id: int
    login: str
    avatar_url: str | None = None
    company: str | None = None
    name: str | None = None
    email: str | None = None


class Account(Struct, frozen=True):
    """A user or an organization."""

    login: str = ""
    type: str = ""


class RepositoryWire(Struct, frozen=True):
    """A repository."""

    id: int
    full_name: str
    private: bool = True
    stargazers_count: Number | None = None
    forks_count: Number | None = None
    pushed_at: str | None = None
    default_branch: str | None = None
    owner: Account = Account()


class Installation(Struct, frozen=True):
    """An app that was installed for an account."""

    id: int
    account: Account | None = None


class Installations(Struct, frozen=True):
    """A page of installations."""

    installations: list[Installation]
    total_count: Number | None = None


class InstalledRepositories(Struct, frozen=True):
    """A page of what an installation opens."""

    repositories: list[RepositoryWire]
    total_count: Number | None = None


class FoundRepositories(Struct, frozen=True):
    """A page of what a search found."""

    items: list[RepositoryWire]
    total_count: Number | None = None


class Commit(Struct, frozen=True):
    """A commit by its hash."""

    sha: str


class BranchWire(Struct, frozen=True):
    """A branch."""

    name: str
    commit: Commit
    protected: bool = False


class Entry(Struct, frozen=True):
    """What a directory has."""

    name: str
    path: str
    type: str


class Content(Struct, frozen=True):
    """What a file has."""

    content: str = ""
    encoding: str = ""


class Author(Struct, frozen=True):
    """When somebody did something."""

    date: str | None = None


class CommitBody(Struct, frozen=True):
    """A commit as git keeps it."""

    committer: Author | None = None


class CommitDetail(Struct, frozen=True):
    """A commit with what is in it."""

    commit: CommitBody


class PageInfo(Struct, frozen=True, rename="camel"):
    """Where the next page begins."""

    has_next_page: bool = False
    end_cursor: str | None = None


class Target(Struct, frozen=True, rename="camel"):
    """What a branch points to."""

    oid: str
    committed_date: str | None = None


class Ref(Struct, frozen=True, rename="camel"):
    """A branch with its last commit."""

    name: str
    target: Target
    branch_protection_rule: dict[str, str] | None = None


class Refs(Struct, frozen=True, rename="camel"):
    """A page of branches."""

    nodes: list[Ref]
    page_info: PageInfo = PageInfo()
    total_count: Number | None = None


class RefsHolder(Struct, frozen=True):
    """A repository with some of its branches."""

    refs: Refs | None = None


class RefsAnswer(Struct, frozen=True):
    """What `BRANCHES_QUERY` finds."""

    repository: RefsHolder | None = None


class Nodes[T](Struct, frozen=True):
    """What a query in GraphQL finds of one kind."""

    nodes: list[T] = []


class RepositoryItem(Struct, frozen=True, rename="camel"):
    """Where something is."""

    name_with_owner: str


class Rollup(Struct, frozen=True):
    """What became of all checks."""

    state: str | None = None


class HeadCommit(Struct, frozen=True, rename="camel"):
    """The last commit of a pull request."""

    status_check_rollup: Rollup | None = None


class Head(Struct, frozen=True):
    """That commit, as pull requests have it."""

    commit: HeadCommit


class Review(Struct, frozen=True):
    """A review."""

    state: str = ""


class Issue(Struct, frozen=True):
    """An issue."""

    number: Number
    title: str
    repository: RepositoryItem


class PullRequest(Struct, frozen=True):
    """A pull request with its state."""

    number: Number
    title: str
    repository: RepositoryItem
    mergeable: str = "UNKNOWN"
    commits: Nodes[Head] = Nodes()
    """The last one, if any"""
    reviews: Nodes[Review] = Nodes()
    """Those that want something"""


class Viewer(Struct, frozen=True, rename="camel"):
    """The user."""

    pull_requests: Nodes[PullRequest | None] = Nodes()
    """None for what the token may not see"""


class TasksAnswer(Struct, frozen=True):
    """What `TASKS_QUERY` finds."""

    viewer: Viewer
    search: Nodes[Issue | None] = Nodes()
    """None for what the token may not see"""


CONTENT: Final = msgspec.json.Decoder(Content | list[Entry])

BRANCHES_QUERY: Final = """
query($owner: String!, $name: String!, $text: String!, $first: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    refs(refPrefix: "refs/heads/", query: $text, first: $first, after: $after,
         orderBy: {field: ALPHABETICAL, direction: ASC}) {
      totalCount
      pageInfo { hasNextPage endCursor }
      nodes {
        name
        target { oid ... on Commit { committedDate } }
        branchProtectionRule { id }
      }
    }
  }
}
"""

TASKS_QUERY: Final = """
query($issues: String!) {
  viewer {
    pullRequests(first: 50, states: OPEN, orderBy: {field: UPDATED_AT, direction: DESC}) {
      nodes {
        number
        title
        repository { nameWithOwner }
        mergeable
        commits(last: 1) { nodes { commit { statusCheckRollup { state } } } }
        reviews(last: 20, states: [CHANGES_REQUESTED, COMMENTED]) { nodes { state } }
      }
    }
  }
  search(query: $issues, type: ISSUE, first: 50) {
    nodes { ... on Issue { number title repository { nameWithOwner } } }
  }
}
"""
ISSUES_SEARCH: Final = "is:issue is:open assignee:@me sort:updated-desc"


_CURSOR_MAX: Final = 256
_ORGANIZATIONS_MAX: Final = 20


class GitHub(Hosting):
    """GitHub as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the API's own host, or the paths of an Enterprise Server."""
        host = urlsplit(base).hostname or ""
        if is_usual or host.endswith(".ghe.com"):
            api = f"https://api.{host}"
            return Places(rest=api, graphql=f"{api}/graphql")
        return Places(rest=f"{base}/api/v3", graphql=f"{base}/api/graphql")

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        user = (await self._api.get("/user", User)).value
        return GitAccount(
            id=str(user.id),
            login=user.login,
            avatar_url=user.avatar_url or "",
            company=user.company,
            name=user.name,
            email=user.email,
        )

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the app's installations the token sees: none, unless an app got it."""
        try:
            answer = await self._api.get(
                "/user/installations", Installations, per_page=limit, page=number_of(cursor)
            )
        except NotAllowed:
            return Listing(items=[])
        found = [str(one.id) for one in answer.value.installations]
        return _listing(found, answer, answer.value.total_count)

    async def organizations(self) -> list[str]:
        """Return the organizations of the user."""
        answer = await self._api.get("/user/orgs", list[Account], per_page=PAGE_MAX)
        return [one.login for one in answer.value]

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return what the user may push to or is a member of; a text is looked for in names."""
        if query.text:
            return await self._found(query)
        if query.installation_id is not None:
            return await self._installed(query, _installation(query.installation_id))
        answer = await self._api.get(
            "/user/repos",
            list[RepositoryWire],
            sort=_LIST_SORTS.get(query.sort, "pushed"),
            direction=_direction(query),
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        return _listing([_to_repository(one) for one in answer.value], answer)

    async def repository(self, name: str) -> Repository:
        """Return one repository."""
        return _to_repository(
            (await self._api.get(f"/repos/{self._path(name)}", RepositoryWire)).value
        )

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; with a text, those whose names contain it."""
        if query.text:
            return await self._found_branches(query)
        answer = await self._api.get(
            f"/repos/{self._path(query.repository)}/branches",
            list[BranchWire],
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        items = [
            Branch(name=one.name, commit_sha=one.commit.sha, is_protected=one.protected)
            for one in answer.value
        ]
        return _listing(items, answer)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open pull requests of the user that need something, and issues assigned to them."""
        found = await self._api.query(TASKS_QUERY, TasksAnswer, {"issues": ISSUES_SEARCH})
        needs: list[tuple[TaskType, PullRequest | Issue]] = [
            (kind, one)
            for one in found.viewer.pull_requests.nodes
            if one is not None and (kind := _need(one)) is not None
        ]
        needs += [(TaskType.OPEN_ISSUE, one) for one in found.search.nodes if one is not None]
        return [
            self._task(kind, one.repository.name_with_owner, one.number, one.title)
            for kind, one in needs
        ]

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch."""
        path = f"/repos/{self._path(repository)}/contents/{quoted_path(directory)}"
        entries = (await self._api.get(path, list[Entry])).value
        return [File(name=one.name, path=one.path) for one in entries if one.type == "file"]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch."""
        where = f"/repos/{self._path(repository)}/contents/{quoted_path(path)}"
        found = (await self._api.get(where, CONTENT)).value
        if isinstance(found, list) or found.encoding != "base64":
            raise NotFound("It is no file, or too large a one")
        return self._decoded(found.content)

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch."""
        path = f"/repos/{self._path(repository)}/commits"
        changes = (await self._api.get(path, list[CommitDetail], path=directory, per_page=1)).value
        return changes[0].commit.committer.date if changes and changes[0].commit.committer else None

    async def _installed(self, query: RepositoryQuery, installation: int) -> Listing[Repository]:
        answer = await self._api.get(
            f"/user/installations/{installation}/repositories",
            InstalledRepositories,
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        found = [_to_repository(one) for one in answer.value.repositories]
        return _listing(found, answer, answer.value.total_count)

    async def _found(self, query: RepositoryQuery) -> Listing[Repository]:
        answer = await self._api.get(
            "/search/repositories",
            FoundRepositories,
            q=await self._search(query),
            sort=_SEARCH_SORTS.get(query.sort),
            order=_direction(query),
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        found = [_to_repository(one) for one in answer.value.items]
        return _listing(found, answer, answer.value.total_count)

    async def _search(self, query: RepositoryQuery) -> str:
        """Return what GitHub is to look for: a name among one owner's, or among the user's."""
        owner, slash, name = query.text.partition("/")
        if query.installation_id is not None:
            owners = [await self._owner_of(_installation(query.installation_id))]
            name = query.text
        elif slash:
            owners = [owner]
        else:
            name = owner
            login = (await self._api.get("/user", User)).value.login
            owners = [login, *(await self._seen_organizations())[:_ORGANIZATIONS_MAX]]
        return " ".join([f"{name} in:name fork:true", *(f"user:{one}" for one in owners)]).strip()

    async def _seen_organizations(self) -> list[str]:
        """Return the organizations of the user, none if the token's scopes do not tell them."""
        try:
            return await self.organizations()
        except NotAllowed:
            return []

    async def _owner_of(self, installation: int) -> str:
        answer = await self._api.get("/user/installations", Installations, per_page=PAGE_MAX)
        for one in answer.value.installations:
            if one.id == installation and one.account is not None:
                return one.account.login
        raise NotFound("There is no such installation")

    async def _found_branches(self, query: BranchQuery) -> Listing[Branch]:
        if len(query.cursor or "") > _CURSOR_MAX:
            raise bad_cursor()
        owner, _, name = query.repository.removesuffix(".git").partition("/")
        self._path(query.repository)
        variables = {
            "owner": owner,
            "name": name,
            "text": query.text,
            "first": query.limit,
            "after": query.cursor,
        }
        found = (await self._api.query(BRANCHES_QUERY, RefsAnswer, variables)).repository
        if found is None or found.refs is None:
            raise NotFound(f"Not found at the git provider `{Provider.GITHUB.value}`")
        info = found.refs.page_info
        return Listing(
            items=[_to_branch(one) for one in found.refs.nodes],
            cursor=info.end_cursor if info.has_next_page else None,
            total=found.refs.total_count,
        )


_LIST_SORTS: Final = {
    SortBy.PUSHED: "pushed",
    SortBy.UPDATED: "updated",
    SortBy.CREATED: "created",
    SortBy.NAME: "full_name",
}
_SEARCH_SORTS: Final = {
    SortBy.STARS: "stars",
    SortBy.FORKS: "forks",
    SortBy.UPDATED: "updated",
}


def _listing[T, S](items: list[T], answer: Answer[S], total: int | None = None) -> Listing[T]:
    return Listing(items=items, cursor=next_number(answer.next_page()), total=total)


def _direction(query: RepositoryQuery) -> str:
    return "asc" if query.is_ascending else "desc"


def _installation(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 20:  # noqa: PLR2004  # 64 bits
        return int(text)
    raise InvalidRequest("An installation at GitHub is a number", loc=INSTALLATION_LOC)


def _to_repository(one: RepositoryWire) -> Repository:
    is_organization = one.owner.type == "Organization"
    return Repository(
        id=str(one.id),
        full_name=one.full_name,
        provider=Provider.GITHUB,
        is_public=not one.private,
        stars=one.stargazers_count,
        forks=one.forks_count,
        pushed_at=one.pushed_at,
        owner_type=OwnerType.ORGANIZATION if is_organization else OwnerType.USER,
        main_branch=one.default_branch,
    )


def _to_branch(ref: Ref) -> Branch:
    return Branch(
        name=ref.name,
        commit_sha=ref.target.oid,
        is_protected=ref.branch_protection_rule is not None,
        pushed_at=ref.target.committed_date,
    )


def _need(one: PullRequest) -> TaskType | None:
    """Return what a pull request needs most, if anything."""
    rollups = [head.commit.status_check_rollup for head in one.commits.nodes]
    if one.mergeable == "CONFLICTING":
        return TaskType.MERGE_CONFLICTS
    if any(rollup and rollup.state in ("FAILURE", "ERROR") for rollup in rollups):
        return TaskType.FAILING_CHECKS
    return TaskType.UNRESOLVED_COMMENTS if one.reviews.nodes else None
