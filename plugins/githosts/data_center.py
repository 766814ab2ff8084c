"""Bitbucket Data Center, which shares only its name with Bitbucket Cloud."""

from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from agentsvc.base import to_stored
from agentsvc.extension.git import (
    PAGE_MAX,
    REPOSITORY_LOC,
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
    SuggestedTask,
    TaskType,
    check_repository,
    number_of,
    quoted,
    quoted_path,
    refused,
)

_PULLS_MAX: Final = 50
_REST: Final = "/rest/api/1.0"
_START_MAX: Final = 10_000_000
_MILLISECONDS_MAX: Final = 10**14


class _User(Struct, frozen=True, rename="camel"):
    id: int
    slug: str
    display_name: str | None = None
    email_address: str | None = None


class _Page[T](Struct, frozen=True, rename="camel"):
    values: list[T]
    is_last_page: bool = True
    next_page_start: int | None = None


class _Project(Struct, frozen=True):
    key: str
    type: str = ""


class _Repository(Struct, frozen=True):
    id: int
    slug: str
    project: _Project
    public: bool = False


class _Branch(Struct, frozen=True, rename="camel"):
    display_id: str
    latest_commit: str


class _Path(Struct, frozen=True):
    name: str


class _Entry(Struct, frozen=True):
    path: _Path
    type: str


class _Directory(Struct, frozen=True):
    children: _Page[_Entry]


class _Commit(Struct, frozen=True, rename="camel"):
    committer_timestamp: int | None = None


class _Ref(Struct, frozen=True):
    repository: _Repository


class _Merge(Struct, frozen=True):
    outcome: str = ""


class _Properties(Struct, frozen=True, rename="camel"):
    open_task_count: int = 0
    merge_result: _Merge = _Merge()


class _Pull(Struct, frozen=True, rename="camel"):
    id: Number
    title: str
    to_ref: _Ref
    properties: _Properties = _Properties()


class DataCenter(Hosting):
    """Bitbucket Data Center as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the address itself: not all that is asked for is below the path of the API."""
        del is_usual
        return Places(rest=base)

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        # It tells the name only, and nothing at all to somebody without a good token.
        login = (await self._api.get_text("/plugins/servlet/applinks/whoami")).strip()
        if not login:
            raise refused(self._api.provider)
        user = (await self._api.get(f"{_REST}/users/{quoted(login)}", _User)).value
        return GitAccount(
            id=str(user.id), login=user.slug, name=user.display_name, email=user.email_address
        )

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the keys of the projects the user sees."""
        answer = await self._api.get(
            f"{_REST}/projects", _Page[_Project], limit=limit, start=_start(cursor)
        )
        return _listing([one.key for one in answer.value.values], answer.value)

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return what the user may read; a text is looked for in names."""
        project, slash, name = query.text.partition("/")
        if query.installation_id is not None or not slash:
            project, name = query.installation_id or "", query.text
        answer = await self._api.get(
            f"{_REST}/repos",
            _Page[_Repository],
            projectkey=project or None,
            name=name or None,
            permission="REPO_READ",
            limit=query.limit,
            start=_start(query.cursor),
        )
        return _listing([_to_repository(one) for one in answer.value.values], answer.value)

    async def repository(self, name: str) -> Repository:
        """Return one repository."""
        return _to_repository((await self._api.get(self._place(name), _Repository)).value)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches, the last changed first; with a text, those whose names contain it."""
        answer = await self._api.get(
            f"{self._place(query.repository)}/branches",
            _Page[_Branch],
            filterText=query.text or None,
            orderBy="MODIFICATION",
            limit=query.limit,
            start=_start(query.cursor),
        )
        return _listing([_to_branch(one) for one in answer.value.values], answer.value)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open pull requests of the user that conflict or have open tasks."""
        pulls = await self._api.get(
            f"{_REST}/dashboard/pull-requests",
            _Page[_Pull],
            role="AUTHOR",
            state="OPEN",
            limit=_PULLS_MAX,
        )
        return [
            self._task(kind, _full_name(one.to_ref.repository), one.id, one.title)
            for one in pulls.value.values
            if (kind := _need(one.properties)) is not None
        ]

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch."""
        path = f"{self._place(repository)}/browse/{quoted_path(directory)}"
        entries = (await self._api.get(path, _Directory, limit=PAGE_MAX)).value.children.values
        return [
            File(name=one.path.name, path=f"{directory}/{one.path.name}")
            for one in entries
            if one.type == "FILE"
        ]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch."""
        return await self._api.get_text(f"{self._place(repository)}/raw/{quoted_path(path)}")

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch."""
        path = f"{self._place(repository)}/commits"
        commits = (await self._api.get(path, _Page[_Commit], path=directory, limit=1)).value.values
        moment = commits[0].committer_timestamp if commits else None
        if moment is None or not 0 <= moment < _MILLISECONDS_MAX:
            return None
        return to_stored(datetime.fromtimestamp(moment / 1000, UTC))

    def cursor_of(self, page: int, limit: int) -> str:
        """Return where a page begins."""
        return str((page - 1) * limit)

    def _place(self, repository: str) -> str:
        project, name = check_repository(repository, self._api.provider, loc=REPOSITORY_LOC)
        return f"{_REST}/projects/{quoted(project)}/repos/{quoted(name)}"


def _start(cursor: str | None) -> int:
    return number_of(cursor, first=0, last=_START_MAX)


def _listing[T, S](items: list[T], page: _Page[S]) -> Listing[T]:
    has_more = not page.is_last_page and page.next_page_start is not None
    return Listing(items=items, cursor=str(page.next_page_start) if has_more else None)


def _full_name(one: _Repository) -> str:
    return f"{one.project.key}/{one.slug}"


def _to_repository(one: _Repository) -> Repository:
    is_personal = one.project.type == "PERSONAL"
    return Repository(
        id=str(one.id),
        full_name=_full_name(one),
        provider=Provider.BITBUCKET_DATA_CENTER,
        is_public=one.public,
        owner_type=OwnerType.USER if is_personal else OwnerType.ORGANIZATION,
    )


def _to_branch(one: _Branch) -> Branch:
    return Branch(name=one.display_id, commit_sha=one.latest_commit)


def _need(properties: _Properties) -> TaskType | None:
    """Return what a pull request needs most, if anything."""
    if properties.merge_result.outcome == "CONFLICTED":
        return TaskType.MERGE_CONFLICTS
    return TaskType.UNRESOLVED_COMMENTS if properties.open_task_count > 0 else None
