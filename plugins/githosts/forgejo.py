"""Forgejo, and Gitea, from which it comes: at codeberg.org or an instance of one's own."""

from typing import Final

import msgspec
from msgspec import Struct

from agentsvc.base import NotFound
from agentsvc.extension.git import (
    PAGE_MAX,
    Answer,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Hosting,
    Listing,
    Number,
    OwnerType,
    Places,
    Provider,
    Repository,
    RepositoryQuery,
    SortBy,
    SuggestedTask,
    TaskType,
    next_number,
    number_of,
    quoted,
    quoted_path,
)

_SERVER_PAGE: Final = 50
"""The most items a server gives at once, unless it is set up otherwise."""
_SEARCHED_PAGES_MAX: Final = 20
_PULLS_MAX: Final = 10


class _User(Struct, frozen=True):
    id: int
    login: str
    avatar_url: str | None = None
    full_name: str | None = None
    email: str | None = None


class _Organization(Struct, frozen=True):
    id: int
    username: str = ""
    name: str = ""


class _Repository(Struct, frozen=True):
    id: int
    full_name: str
    private: bool = True
    stars_count: Number | None = None
    forks_count: Number | None = None
    updated_at: str | None = None
    default_branch: str | None = None


class _Found(Struct, frozen=True):
    data: list[_Repository]


class _Commit(Struct, frozen=True):
    id: str
    timestamp: str | None = None


class _Branch(Struct, frozen=True):
    name: str
    commit: _Commit
    protected: bool = False


class _Entry(Struct, frozen=True):
    name: str
    path: str
    type: str


class _Content(Struct, frozen=True):
    content: str | None = None


class _Change(Struct, frozen=True):
    created: str | None = None


class _InRepository(Struct, frozen=True):
    full_name: str


class _Issue(Struct, frozen=True):
    number: Number
    title: str
    repository: _InRepository


class _Head(Struct, frozen=True):
    sha: str = ""


class _Pull(Struct, frozen=True):
    mergeable: bool = True
    head: _Head = _Head()


class _Status(Struct, frozen=True):
    state: str = ""


class _Review(Struct, frozen=True):
    state: str = ""
    dismissed: bool = False
    stale: bool = False


_CONTENT: Final = msgspec.json.Decoder(_Content | list[_Entry])


class Forgejo(Hosting):
    """Forgejo as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the path of the API, which is the same everywhere."""
        del is_usual
        return Places(rest=f"{base}/api/v1")

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        user = (await self._api.get("/user", _User)).value
        return GitAccount(
            id=str(user.id),
            login=user.login,
            avatar_url=user.avatar_url or "",
            name=user.full_name,
            email=user.email,
        )

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the organizations of the user."""
        answer = await self._api.get(
            "/user/orgs", list[_Organization], page=number_of(cursor), limit=limit
        )
        return _listing([one.username or one.name for one in answer.value], answer)

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return what the user owns or works on; a text is looked for in names."""
        if query.text:
            return await self._found(query)
        if query.installation_id is None:
            path, owner_type = "/user/repos", None
        else:
            path = f"/orgs/{quoted(query.installation_id)}/repos"
            owner_type = OwnerType.ORGANIZATION
        answer = await self._api.get(
            path, list[_Repository], page=number_of(query.cursor), limit=query.limit
        )
        return _listing([_to_repository(one, owner_type) for one in answer.value], answer)

    async def repository(self, name: str) -> Repository:
        """Return one repository."""
        return _to_repository(
            (await self._api.get(f"/repos/{self._path(name)}", _Repository)).value
        )

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; with a text, those whose names contain it."""
        path = f"/repos/{self._path(query.repository)}/branches"
        if query.text:
            return await self._found_branches(path, query)
        answer = await self._api.get(
            path, list[_Branch], page=number_of(query.cursor), limit=query.limit
        )
        return _listing([_to_branch(one) for one in answer.value], answer)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return pull requests of the user that need something, and issues assigned to them."""
        pulls = await self._api.get(
            "/repos/issues/search",
            list[_Issue],
            type="pulls",
            state="open",
            created=True,
            limit=_PULLS_MAX,
        )
        issues = await self._api.get(
            "/repos/issues/search",
            list[_Issue],
            type="issues",
            state="open",
            assigned=True,
            limit=_SERVER_PAGE,
        )
        # A server may give more than it is asked for.
        needs = [(await self._need(one), one) for one in pulls.value[:_PULLS_MAX]]
        found = [(kind, one) for kind, one in needs if kind is not None]
        found += [(TaskType.OPEN_ISSUE, one) for one in issues.value]
        return [
            self._task(kind, one.repository.full_name, one.number, one.title) for kind, one in found
        ]

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch."""
        path = f"/repos/{self._path(repository)}/contents/{quoted_path(directory)}"
        entries = (await self._api.get(path, list[_Entry])).value
        return [File(name=one.name, path=one.path) for one in entries if one.type == "file"]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch."""
        where = f"/repos/{self._path(repository)}/contents/{quoted_path(path)}"
        found = (await self._api.get(where, _CONTENT)).value
        content = found.content if isinstance(found, _Content) else None
        if content is None:
            raise NotFound("It is no file, or too large a one")
        return self._decoded(content)

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch."""
        path = f"/repos/{self._path(repository)}/commits"
        # Gitea gives a whole page of commits where a path is named, so each has to be short.
        answer = await self._api.get(
            path,
            list[_Change],
            path=directory,
            limit=1,
            stat=False,
            verification=False,
            files=False,
        )
        changes = answer.value
        return changes[0].created if changes else None

    async def _found(self, query: RepositoryQuery) -> Listing[Repository]:
        owner, slash, name = query.text.partition("/")
        if query.installation_id is not None:
            path = f"/orgs/{quoted(query.installation_id)}"
            owner_id, name = (await self._api.get(path, _Organization)).value.id, query.text
        elif slash:
            path = f"/users/{quoted(owner)}"
            owner_id = (await self._api.get(path, _User)).value.id
        else:
            owner_id, name = (await self._api.get("/user", _User)).value.id, owner
        answer = await self._api.get(
            "/repos/search",
            _Found,
            q=name,
            uid=owner_id,
            exclusive=bool(slash or query.installation_id),
            sort=_SORTS.get(query.sort, "updated"),
            order="asc" if query.is_ascending else "desc",
            page=number_of(query.cursor),
            limit=query.limit,
        )
        return _listing([_to_repository(one) for one in answer.value.data], answer)

    async def _found_branches(self, path: str, query: BranchQuery) -> Listing[Branch]:
        """Look through the names here, since the service does not, and count what fits."""
        first = number_of(query.cursor, first=0)
        wanted = first + query.limit
        found: list[Branch] = []
        for page in range(1, _SEARCHED_PAGES_MAX + 1):
            answer = await self._api.get(path, list[_Branch], page=page, limit=_SERVER_PAGE)
            branches = map(_to_branch, answer.value)
            found += [one for one in branches if query.text.lower() in one.name.lower()]
            if len(found) > wanted or answer.next_page() is None:
                break
        cursor = str(wanted) if len(found) > wanted else None
        return Listing(items=found[first:wanted], cursor=cursor)

    async def _need(self, pull: _Issue) -> TaskType | None:
        """Return what a pull request needs most, if anything."""
        repository = f"/repos/{self._path(pull.repository.full_name)}"
        path = f"{repository}/pulls/{pull.number}"
        found = (await self._api.get(path, _Pull)).value
        if not found.mergeable:
            return TaskType.MERGE_CONFLICTS
        path_of_status = f"{repository}/commits/{quoted(found.head.sha)}/status"
        if (await self._api.get(path_of_status, _Status)).value.state in ("failure", "error"):
            return TaskType.FAILING_CHECKS
        reviews = (await self._api.get(f"{path}/reviews", list[_Review], limit=PAGE_MAX)).value
        is_open = any(
            one.state == "REQUEST_CHANGES" and not one.dismissed and not one.stale
            for one in reviews
        )
        return TaskType.UNRESOLVED_COMMENTS if is_open else None


_SORTS: Final = {
    SortBy.STARS: "stars",
    SortBy.FORKS: "forks",
    SortBy.CREATED: "created",
    SortBy.NAME: "alpha",
}


def _listing[T, S](items: list[T], answer: Answer[S]) -> Listing[T]:
    return Listing(
        items=items, cursor=next_number(answer.next_page()), total=answer.total("X-Total-Count")
    )


def _to_repository(one: _Repository, owner_type: OwnerType | None = None) -> Repository:
    return Repository(
        id=str(one.id),
        full_name=one.full_name,
        provider=Provider.FORGEJO,
        is_public=not one.private,
        stars=one.stars_count,
        forks=one.forks_count,
        pushed_at=one.updated_at,
        owner_type=owner_type,
        main_branch=one.default_branch,
    )


def _to_branch(one: _Branch) -> Branch:
    return Branch(
        name=one.name,
        commit_sha=one.commit.id,
        is_protected=one.protected,
        pushed_at=one.commit.timestamp,
    )
