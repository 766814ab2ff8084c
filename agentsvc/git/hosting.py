"""The interface of a git hosting service, and all that one shares with the others.

A service says in a table where it has things, what it calls them, and how it counts pages. What it does in a
way of its own is a method of its class.
"""

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec import Struct

from agentsvc.base import MAX_INT, BadRequest, InvalidRequest, NotFound
from agentsvc.domain import SuggestedTask, TaskType
from agentsvc.domain import repositories as git
from agentsvc.git.client import ITEMS_MAX, Answer, GitApi, Value
from agentsvc.git.lookup import Lookup, find, parts, quoted, quoted_path, resolve
from agentsvc.git.model import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    Number,
    Repository,
    RepositoryQuery,
)

PAGE_NUMBER_MAX: Final = 100_000

REPOSITORY_LOC: Final = ("query", "repository")
CURSOR_LOC: Final = ("query", "page_id")

_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()


class Places(NamedTuple):
    """Where a service answers."""

    rest: str
    graphql: str | None = None


class Item(Struct, frozen=True):
    """What has a name only: a group, a file."""

    id: str


class _Change(Struct, frozen=True):
    at: str | None = None


class Task(Struct, frozen=True):
    """An issue, or a pull request with what it may need."""

    repo: str
    number: Number
    title: str
    conflicts: bool = False
    fails: bool = False
    threads: int = 0
    resolved: int = 0

    def need(self) -> TaskType | None:
        """Return what a pull request needs most, if anything."""
        if self.conflicts:
            return TaskType.MERGE_CONFLICTS
        if self.fails:
            return TaskType.FAILING_CHECKS
        return TaskType.UNRESOLVED_COMMENTS if self.threads > self.resolved else None


def in_owner(query: RepositoryQuery) -> RepositoryQuery:
    """Return a search for `owner/name` as one for a name among the repositories of an owner."""
    owner, slash, name = query.text.partition("/")
    if query.installation_id is not None or not slash:
        return query
    return msgspec.structs.replace(query, installation_id=owner, text=name)


def _no(what: str) -> Lookup:
    """Return the lookup of what a service is not asked for."""
    return Lookup("", items=what)


class Hosting:
    """One hosting service, as the token of one user opens it.

    The parts of its lookups are the fields of what is returned. The cursors are what the service itself needs
    to find the next page, and never an address: they come back from clients. Every method may raise what
    requests raise (see `Api`), InvalidRequest for a cursor or name that cannot be, and BadRequest for what
    the service does not offer.
    """

    rest: ClassVar[str] = ""
    """Where the API is below the address of the host, and where that of the public one is, if elsewhere."""
    usual_rest: ClassVar[str] = ""
    graphql: ClassVar[str] = ""
    repos: ClassVar[str] = "/repos"
    """What is before the name of a repository in a path."""
    size: ClassVar[str] = "per_page"
    """The parameter that says how many things a page has."""
    page: ClassVar[str] = "page"
    """The parameter that says which page is wanted, or from which thing on."""
    pages: ClassVar[tuple[int, int]] = (1, PAGE_NUMBER_MAX)
    """The first number of that and the last one."""
    total: ClassVar[str] = ""
    """The header, or else the part of an answer, that says how many there are on all pages."""
    sorts: ClassVar[str] = ""
    """What the host calls what it sorts by, as `parts` takes it, and what it is asked for otherwise:"""
    usual_sort: ClassVar[str] = ""
    user: ClassVar[Lookup] = _no("accounts")
    owners: ClassVar[Lookup] = _no("installations")
    """What repositories belong to."""
    listed: ClassVar[Lookup] = _no("repositories")
    """Repositories of the user, by `{text}`, `{sort}` and `{order}`."""
    owned: ClassVar[Lookup] = _no("repositories")
    """Repositories of an `{owner}`."""
    branched: ClassVar[Lookup] = _no("branches")
    """Branches, with a `{text}` in their names."""
    directory: ClassVar[Lookup] = _no("files")
    """The names of what is in a directory, `{file}`, below the `{head}` if one is needed."""
    raw: ClassVar[str] = ""
    """Where the text of a `{file}` is; without it, it is in base64 where directories are, too."""
    changed: ClassVar[Lookup] = _no("files")
    """When the last change below a `{file}` was."""

    def __init__(self, api: GitApi, base: str) -> None:
        self.api = self._api = api
        self._base = base

    def name_at(self, url: str) -> str | None:
        """Return the name of the repository at a URL, None for one of another place."""
        if not git.is_below(url, self._base):
            return None
        return url[len(self._base) :].partition("?")[0].partition("#")[0].strip("/")

    @classmethod
    def places(cls, base: str, *, is_usual: bool) -> Places:
        """Return where the service at this address answers; `is_usual` for the public one."""
        rest = cls.usual_rest if is_usual and cls.usual_rest else base + cls.rest
        return Places(rest=rest, graphql=base + cls.graphql if cls.graphql else None)

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        return self._one(GitAccount, self.user, (await self._ask(self.user)).value)

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the installations, workspaces, groups or organizations repositories belong to."""
        found = await self._page(Item, self.owners, RepositoryQuery(cursor=cursor, limit=limit))
        names = [one.id for one in found.items]
        return Listing(items=names, cursor=found.cursor, total=found.total)

    async def organizations(self) -> list[str]:
        """Return the names of the first organizations, groups or workspaces of the user."""
        return (await self.installations(None, PAGE_MAX)).items

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories of the user, or of an owner."""
        lookup = self.listed if query.installation_id is None else self.owned
        return await self._page(Repository, lookup, query)

    async def repository(self, name: str) -> Repository:
        """Return one repository; raises NotFound."""
        lookup = msgspec.structs.replace(self.listed, path=self.listed.path and "{repo}")
        return self._one(Repository, lookup, (await self._ask(lookup, name)).value)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; with a text, those whose names contain it."""
        return await self._page(Branch, self.branched, query)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return what there is to do for the user, the first hundred or so of it."""
        return []

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch; raises NotFound."""
        answer = await self._ask(self.directory, repository, await self._at(repository, directory))
        found = self._all(Item, self.directory, answer.value)
        names = [one.id.rpartition("/")[2] for one in found]
        return [File(name=name, path=f"{directory}/{name}") for name in names]

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch; raises NotFound."""
        values = await self._at(repository, path)
        if self.raw:
            where, query = resolve(self.raw, values, self.place(repository))
            return await self._api.get_text(where, **query)
        found = (await self._ask(self.directory, repository, values)).value
        content = find(found, "content")
        if not isinstance(content, str) or find(found, "encoding") != "base64":
            raise NotFound("It is no file, or too large a one")
        return self._decoded(content)

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch, if the service tells."""
        answer = await self._ask(self.changed, repository, await self._at(repository, directory))
        found = self._all(_Change, self.changed, answer.value)
        return found[0].at if found else None

    def place(self, repository: str) -> str:
        """Return the path of a repository; raises InvalidRequest for what cannot be its name."""
        return f"{self.repos}/{self._path(repository)}"

    def cursor_of(self, page: int, limit: int) -> str:
        """Return the cursor of a page by its number, if those before it are full."""
        del limit
        return str(page)

    def counts_pages(self, query: RepositoryQuery) -> bool:
        """Tell whether the pages of these repositories have numbers."""
        del query
        return True

    async def _at(self, _repository: str, path: str) -> dict[str, str]:
        """Return what says where a file is on the main branch; raises InvalidRequest."""
        quoted_path(path)
        return {"file": path}

    async def _page[T](
        self, kind: type[T], lookup: Lookup, query: RepositoryQuery | BranchQuery, **more: str
    ) -> Listing[T]:
        """Return one page of things, sorted as far as the host does it."""
        values, repository = {"text": query.text}, None
        if isinstance(query, BranchQuery):
            repository = query.repository
        else:
            values |= {
                "is_search": "true" if query.text else "false",
                "owner": query.installation_id or "",
                "sort": parts(self.sorts).get(query.sort.value, self.usual_sort),
                "order": "asc" if query.is_ascending else "desc",
            }
        first, last = self.pages
        number = number_of(query.cursor, first=first, last=last)
        paging = {self.size: query.limit, self.page: number}
        answer = await self._ask(lookup, repository, values | more, paging)
        total = answer.total(self.total)
        if total is None:
            total = find(answer.value, self.total)
        return self._listing(kind, lookup, answer.value, self._next(answer), total)

    def _next(self, answer: Answer[Any]) -> str | None:
        """Return the cursor of the next page, None on the last one."""
        return next_number(answer.next_page())

    async def _ask(
        self,
        lookup: Lookup,
        repository: str | None = None,
        values: Mapping[str, str] = {},
        more: Mapping[str, Value] = {},
    ) -> Answer[Any]:
        if not lookup.path:
            name = self._api.provider.value
            raise BadRequest(f"The git provider `{name}` does not list {lookup.items} here")
        repo = "" if repository is None else self.place(repository)
        where, query = resolve(lookup.path, values, repo)
        return await self._api.get(where, _ANY, **query, **more)

    def _listing[T](
        self, kind: type[T], lookup: Lookup, value: Any, cursor: str | None, total: Any
    ) -> Listing[T]:
        is_known = isinstance(total, int) and abs(total) <= MAX_INT
        items = self._all(kind, lookup, value)
        return Listing(items=items, cursor=cursor, total=total if is_known else None)

    def _all[T](self, kind: type[T], lookup: Lookup, value: Any) -> list[T]:
        found = find(value, lookup.items) if lookup.items else value
        if not isinstance(found, list):
            raise self._api.unavailable("unexpected answer: a list is missing")
        known = [one for one in found[:ITEMS_MAX] if one is not None]
        return [self._one(kind, lookup, one) for one in lookup.fitting(known)]

    def _one[T](self, kind: type[T], lookup: Lookup, value: Any) -> T:
        found = {name: find(value, part) for name, part in lookup.parts.items()}
        told = {name: one for name, one in found.items() if one is not None}
        if isinstance(told.get("id"), int):
            told["id"] = str(told["id"])
        try:
            return msgspec.convert({"provider": self._api.provider, **told}, kind, strict=False)
        except msgspec.ValidationError as exc:
            raise self._api.unavailable(f"unexpected answer: {exc}") from exc

    def _tasks(
        self, lookup: Lookup, value: Any, kind: TaskType | None = None
    ) -> list[SuggestedTask]:
        """Return issues, which are of one kind, or pull requests that need something."""
        found = self._all(Task, lookup, value)
        needs = [(kind or one.need(), one) for one in found]
        return [self._task(need, one.repo, one.number, one.title) for need, one in needs if need]

    def _task(self, kind: TaskType, repository: str, number: int, title: str) -> SuggestedTask:
        return SuggestedTask(
            provider=self._api.provider,
            task_type=kind,
            repo=repository,
            issue_number=number,
            title=title,
        )

    def _decoded(self, content: str) -> str:
        """Return the text of a file that came in base64."""
        try:
            return base64.b64decode(content).decode(errors="replace")
        except ValueError as exc:
            raise self._api.unavailable(f"unexpected answer: {exc}") from exc

    def _path(self, repository: str) -> str:
        """Return the parts of a repository's name, checked and quoted, with slashes between."""
        segments = git.check_repository(repository, self._api.provider, loc=REPOSITORY_LOC)
        return "/".join(quoted(segment) for segment in segments)


def number_of(cursor: str | None, *, first: int = 1, last: int = PAGE_NUMBER_MAX) -> int:
    """Return the number a cursor stands for; raises InvalidRequest."""
    if cursor is None:
        return first
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= len(str(last)):
        number = int(cursor)
        if first <= number <= last:
            return number
    raise bad_cursor()


def next_number(cursor: str | None) -> str | None:
    """Return the number of the next page as a service gave it, None for anything else."""
    try:
        return str(number_of(cursor)) if cursor is not None else None
    except InvalidRequest:
        return None


def bad_cursor() -> InvalidRequest:
    """Return the error for a cursor the service did not give."""
    return InvalidRequest("page_id is not one this server gave", loc=CURSOR_LOC)
