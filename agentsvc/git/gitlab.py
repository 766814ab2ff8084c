"""GitLab, at gitlab.com or an instance of one's own."""

from typing import Final

import msgspec
from msgspec import Struct

from agentsvc.domain import Provider, SuggestedTask, TaskType
from agentsvc.git.client import Answer
from agentsvc.git.github import Entry, Nodes
from agentsvc.git.hosting import Hosting, Places, next_number, number_of, quoted, quoted_path
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

_MEMBER: Final = 10
"""The access level of guests, the lowest a member of a group has."""

_TASKS_MAX: Final = 50


class _User(Struct, frozen=True):
    id: int
    username: str
    avatar_url: str | None = None
    organization: str | None = None
    name: str | None = None
    email: str | None = None


class _Group(Struct, frozen=True):
    full_path: str


class _Namespace(Struct, frozen=True):
    kind: str = ""


class _Project(Struct, frozen=True):
    id: int
    path_with_namespace: str
    visibility: str = "private"
    star_count: Number | None = None
    forks_count: Number | None = None
    last_activity_at: str | None = None
    default_branch: str | None = None
    namespace: _Namespace = _Namespace()


class _Commit(Struct, frozen=True):
    id: str
    committed_date: str | None = None


class _Branch(Struct, frozen=True):
    name: str
    commit: _Commit
    protected: bool = False


class _References(Struct, frozen=True):
    full: str


class _Issue(Struct, frozen=True):
    iid: Number
    title: str
    references: _References


class _Pipeline(Struct, frozen=True):
    status: str = ""


class _InProject(Struct, frozen=True, rename="camel"):
    full_path: str


class _MergeRequest(Struct, frozen=True, rename="camel"):
    iid: Number
    """A text on the way, which the decoder takes for the number it is."""
    title: str
    project: _InProject
    conflicts: bool = False
    head_pipeline: _Pipeline | None = None
    resolvable_discussions_count: int | None = None
    resolved_discussions_count: int | None = None


class _Author(Struct, frozen=True, rename="camel"):
    authored_merge_requests: Nodes[_MergeRequest | None] = Nodes()


class _TasksAnswer(Struct, frozen=True, rename="camel"):
    current_user: _Author | None = None


_TASKS: Final = msgspec.json.Decoder(_TasksAnswer, strict=False)

TASKS_QUERY: Final = """
query {
  currentUser {
    authoredMergeRequests(state: opened, first: 50, sort: UPDATED_DESC) {
      nodes {
        iid
        title
        project { fullPath }
        conflicts
        headPipeline { status }
        resolvableDiscussionsCount
        resolvedDiscussionsCount
      }
    }
  }
}
"""


class GitLab(Hosting):
    """GitLab as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the paths of the API, which are the same everywhere."""
        del is_usual
        return Places(rest=f"{base}/api/v4", graphql=f"{base}/api/graphql")

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        user = (await self._api.get("/user", _User)).value
        return GitAccount(
            id=str(user.id),
            login=user.username,
            avatar_url=user.avatar_url or "",
            company=user.organization,
            name=user.name,
            email=user.email,
        )

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the groups the user is a member of."""
        answer = await self._api.get(
            "/groups",
            list[_Group],
            min_access_level=_MEMBER,
            per_page=limit,
            page=number_of(cursor),
        )
        return _listing([one.full_path for one in answer.value], answer)

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return projects the user is a member of, or those of a group and below it."""
        if query.installation_id is None:
            path, scope = "/projects", {"membership": True, "search_namespaces": bool(query.text)}
        else:
            path, scope = f"/groups/{quoted(query.installation_id)}/projects", {}
            scope["include_subgroups"] = True
        answer = await self._api.get(
            path,
            list[_Project],
            **scope,
            archived=False,
            search=query.text or None,
            order_by=_SORTS.get(query.sort, "last_activity_at"),
            sort="asc" if query.is_ascending else "desc",
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        items = [_to_repository(one) for one in answer.value]
        if query.sort is SortBy.FORKS:
            # GitLab does not sort by them.
            items.sort(key=lambda one: one.forks or 0, reverse=not query.is_ascending)
        return _listing(items, answer)

    async def repository(self, name: str) -> Repository:
        """Return one project."""
        return _to_repository((await self._api.get(self._project(name), _Project)).value)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; with a text, those whose names contain it."""
        answer = await self._api.get(
            f"{self._project(query.repository)}/repository/branches",
            list[_Branch],
            search=query.text or None,
            per_page=query.limit,
            page=number_of(query.cursor),
        )
        return _listing([_to_branch(one) for one in answer.value], answer)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open merge requests that need something, and issues assigned to the user."""
        user = (await self._api.query(TASKS_QUERY, _TASKS, {})).current_user
        found = user.authored_merge_requests.nodes if user else []
        issues = await self._api.get(
            "/issues", list[_Issue], scope="assigned_to_me", state="opened", per_page=_TASKS_MAX
        )
        tasks = [
            self._task(kind, one.project.full_path, one.iid, one.title)
            for one in found
            if one is not None and (kind := _need(one)) is not None
        ]
        return tasks + [
            self._task(
                TaskType.OPEN_ISSUE, one.references.full.partition("#")[0], one.iid, one.title
            )
            for one in issues.value
        ]

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch."""
        answer = await self._api.get(
            f"{self._project(repository)}/repository/tree",
            list[Entry],
            path=directory,
            per_page=PAGE_MAX,
        )
        return [File(name=one.name, path=one.path) for one in answer.value if one.type == "blob"]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch."""
        file = quoted_path(path).replace("/", "%2F")
        where = f"{self._project(repository)}/repository/files/{file}/raw"
        return await self._api.get_text(where, ref="HEAD")

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch."""
        path = f"{self._project(repository)}/repository/commits"
        commits = (await self._api.get(path, list[_Commit], path=directory, per_page=1)).value
        return commits[0].committed_date if commits else None

    def _project(self, repository: str) -> str:
        return f"/projects/{self._path(repository).replace('/', '%2F')}"


_SORTS: Final = {
    SortBy.UPDATED: "updated_at",
    SortBy.CREATED: "created_at",
    SortBy.NAME: "path",
    SortBy.STARS: "star_count",
}


def _listing[T, S](items: list[T], answer: Answer[S]) -> Listing[T]:
    return Listing(
        items=items, cursor=next_number(answer.next_page()), total=answer.total("X-Total")
    )


def _to_repository(one: _Project) -> Repository:
    is_group = one.namespace.kind == "group"
    return Repository(
        id=str(one.id),
        full_name=one.path_with_namespace,
        provider=Provider.GITLAB,
        is_public=one.visibility == "public",
        stars=one.star_count,
        forks=one.forks_count,
        pushed_at=one.last_activity_at,
        owner_type=OwnerType.ORGANIZATION if is_group else OwnerType.USER,
        main_branch=one.default_branch,
    )


def _to_branch(one: _Branch) -> Branch:
    return Branch(
        name=one.name,
        commit_sha=one.commit.id,
        is_protected=one.protected,
        pushed_at=one.commit.committed_date,
    )


def _need(one: _MergeRequest) -> TaskType | None:
    """Return what a merge request needs most, if anything."""
    if one.conflicts:
        return TaskType.MERGE_CONFLICTS
    if one.head_pipeline and one.head_pipeline.status == "FAILED":
        return TaskType.FAILING_CHECKS
    open_ones = (one.resolvable_discussions_count or 0) - (one.resolved_discussions_count or 0)
    return TaskType.UNRESOLVED_COMMENTS if open_ones > 0 else None
