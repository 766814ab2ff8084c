"""Bitbucket Cloud, whose repositories are in workspaces: no request goes over all of them."""

from typing import Final

import msgspec
from msgspec import Struct

from agentsvc.base import NotFound
from agentsvc.extension.git import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Hosting,
    Listing,
    Number,
    Places,
    Provider,
    Repository,
    RepositoryQuery,
    SortBy,
    SuggestedTask,
    TaskType,
    bad_cursor,
    next_number,
    number_of,
    page_in,
    quoted,
    quoted_path,
)

_WORKSPACES_MAX: Final = 10
_PULLS_MAX: Final = 50


class _Link(Struct, frozen=True):
    href: str | None = None


class _Links(Struct, frozen=True):
    avatar: _Link = _Link()


class _User(Struct, frozen=True):
    uuid: str
    account_id: str | None = None
    username: str | None = None
    nickname: str = ""
    display_name: str | None = None
    links: _Links = _Links()


class _Page[T](Struct, frozen=True):
    values: list[T]
    next: str | None = None
    size: Number | None = None


class _Workspace(Struct, frozen=True):
    slug: str


class _Access(Struct, frozen=True):
    workspace: _Workspace


class _MainBranch(Struct, frozen=True):
    name: str | None = None


class _Repository(Struct, frozen=True):
    uuid: str
    full_name: str
    is_private: bool = True
    updated_on: str | None = None
    mainbranch: _MainBranch | None = None


class _Target(Struct, frozen=True):
    hash: str
    date: str | None = None


class _Branch(Struct, frozen=True):
    name: str
    target: _Target


class _Entry(Struct, frozen=True):
    path: str
    type: str


class _Name(Struct, frozen=True):
    full_name: str


class _Destination(Struct, frozen=True):
    repository: _Name


class _Pull(Struct, frozen=True):
    id: Number
    title: str
    destination: _Destination
    task_count: int = 0


class Bitbucket(Hosting):
    """Bitbucket Cloud as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the API's own host, or its path elsewhere."""
        return Places(rest="https://api.bitbucket.org/2.0" if is_usual else f"{base}/2.0")

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        user = await self._user()
        return GitAccount(
            id=user.account_id or user.uuid,
            login=user.username or user.nickname,
            avatar_url=user.links.avatar.href or "",
            name=user.display_name,
        )

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the workspaces the user has access to."""
        answer = await self._api.get(
            "/user/workspaces", _Page[_Access], pagelen=limit, page=number_of(cursor)
        )
        slugs = [one.workspace.slug for one in answer.value.values]
        return _listing(slugs, answer.value)

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories of a workspace, or of one workspace of the user after the other.

        A page has those of one workspace, so it may be short while there are more. Workspaces
        that have none are passed over.
        """
        if query.installation_id is not None:
            return await self._in_workspace(query.installation_id, query.text, query)
        workspace, slash, name = query.text.partition("/")
        if slash:
            return await self._in_workspace(workspace, name, query)
        return await self._in_workspaces(query)

    async def repository(self, name: str) -> Repository:
        """Return one repository."""
        return _to_repository(await self._repository(name))

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches, the last changed first; with a text, those whose names contain it."""
        answer = await self._api.get(
            f"/repositories/{self._path(query.repository)}/refs/branches",
            _Page[_Branch],
            q=_name_like(query.text),
            sort="-target.date",
            pagelen=query.limit,
            page=number_of(query.cursor),
        )
        return _listing([_to_branch(one) for one in answer.value.values], answer.value)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open pull requests of the user that have open tasks."""
        author = quoted((await self._user()).uuid)
        tasks = []
        for workspace in (await self.installations(None, _WORKSPACES_MAX)).items:
            path = f"/workspaces/{quoted(workspace)}/pullrequests/{author}"
            pulls = await self._api.get(path, _Page[_Pull], state="OPEN", pagelen=_PULLS_MAX)
            tasks += [
                self._task(
                    TaskType.UNRESOLVED_COMMENTS,
                    one.destination.repository.full_name,
                    one.id,
                    one.title,
                )
                for one in pulls.value.values
                if one.task_count > 0
            ]
        return tasks

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch."""
        commit = await self._main_commit(repository)
        path = f"/repositories/{self._path(repository)}/src/{commit}/{quoted_path(directory)}/"
        entries = (await self._api.get(path, _Page[_Entry], pagelen=PAGE_MAX)).value.values
        return [
            File(name=one.path.rpartition("/")[2], path=one.path)
            for one in entries
            if one.type == "commit_file"
        ]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch."""
        commit = await self._main_commit(repository)
        where = f"/repositories/{self._path(repository)}/src/{commit}/{quoted_path(path)}"
        return await self._api.get_text(where)

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch."""
        commit = await self._main_commit(repository)
        path = f"/repositories/{self._path(repository)}/commits/{commit}"
        commits = (
            await self._api.get(path, _Page[_Target], path=directory, pagelen=1)
        ).value.values
        return commits[0].date if commits else None

    def counts_pages(self, query: RepositoryQuery) -> bool:
        """Tell whether they are all in one workspace."""
        return query.installation_id is not None or "/" in query.text

    async def _user(self) -> _User:
        return (await self._api.get("/user", _User)).value

    async def _repository(self, name: str) -> _Repository:
        return (await self._api.get(f"/repositories/{self._path(name)}", _Repository)).value

    async def _in_workspaces(self, query: RepositoryQuery) -> Listing[Repository]:
        workspaces = (await self.installations(None, PAGE_MAX)).items
        if not workspaces:
            return Listing(items=[])
        workspace, page = workspaces[0], None
        if query.cursor is not None:
            workspace, _, page = query.cursor.partition("/")
        if workspace not in workspaces:
            raise bad_cursor()
        left = workspaces[workspaces.index(workspace) :]
        found = await self._in_workspace(left[0], query.text, _at(query, page))
        while not found.items and found.cursor is None and len(left) > 1:
            left = left[1:]
            found = await self._in_workspace(left[0], query.text, _at(query, None))
        if found.cursor is not None:
            return Listing(items=found.items, cursor=f"{left[0]}/{found.cursor}")
        return Listing(items=found.items, cursor=f"{left[1]}/1" if len(left) > 1 else None)

    async def _in_workspace(
        self, workspace: str, text: str, query: RepositoryQuery
    ) -> Listing[Repository]:
        answer = await self._api.get(
            f"/repositories/{quoted(workspace)}",
            _Page[_Repository],
            role="member",
            q=_name_like(text),
            sort=("" if query.is_ascending else "-") + _SORTS.get(query.sort, "updated_on"),
            pagelen=query.limit,
            page=number_of(query.cursor),
        )
        return _listing([_to_repository(one) for one in answer.value.values], answer.value)

    async def _main_commit(self, repository: str) -> str:
        """Return the main branch's commit: a branch with a slash cannot be named in a path."""
        found = await self._repository(repository)
        if found.mainbranch is None or found.mainbranch.name is None:
            raise NotFound("The repository is empty")
        branch = quoted(found.mainbranch.name)
        path = f"/repositories/{self._path(repository)}/refs/branches/{branch}"
        return quoted((await self._api.get(path, _Branch)).value.target.hash)


_SORTS: Final = {SortBy.CREATED: "created_on", SortBy.NAME: "full_name"}


def _listing[T, S](items: list[T], page: _Page[S]) -> Listing[T]:
    cursor = next_number(page_in(page.next)) if page.next else None
    return Listing(items=items, cursor=cursor, total=page.size)


def _at(query: RepositoryQuery, cursor: str | None) -> RepositoryQuery:
    return msgspec.structs.replace(query, cursor=cursor)


def _name_like(text: str) -> str | None:
    """Return the filter for names that contain a text."""
    quoted_text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'name ~ "{quoted_text}"' if text else None


def _to_repository(one: _Repository) -> Repository:
    return Repository(
        id=one.uuid,
        full_name=one.full_name,
        provider=Provider.BITBUCKET,
        is_public=not one.is_private,
        pushed_at=one.updated_on,
        main_branch=one.mainbranch.name if one.mainbranch else None,
    )


def _to_branch(one: _Branch) -> Branch:
    return Branch(name=one.name, commit_sha=one.target.hash, pushed_at=one.target.date)
