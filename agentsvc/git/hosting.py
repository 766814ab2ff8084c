"""The base class of git hosting services.

A service declares its paths, the names of its fields, and its paging in a table. What differs beyond that
is a method of its class.
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
    """The base URLs of a service's APIs."""

    rest: str
    graphql: str | None = None


class Item(Struct, frozen=True):
    """An object with nothing but a name: a group, a file."""

    id: str


class _Change(Struct, frozen=True):
    at: str | None = None


class Task(Struct, frozen=True):
    """An issue, or a pull request with the state of its checks and reviews."""

    repo: str
    number: Number
    title: str
    conflicts: bool = False
    fails: bool = False
    threads: int = 0
    resolved: int = 0

    def need(self) -> TaskType | None:
        """Return the most important need of a pull request, or None."""
        if self.conflicts:
            return TaskType.MERGE_CONFLICTS
        if self.fails:
            return TaskType.FAILING_CHECKS
        return TaskType.UNRESOLVED_COMMENTS if self.threads > self.resolved else None


def in_owner(query: RepositoryQuery) -> RepositoryQuery:
    """Turn a search for `owner/name` into one for a name among the repositories of an owner."""
    owner, slash, name = query.text.partition("/")
    if query.installation_id is not None or not slash:
        return query
    return msgspec.structs.replace(query, installation_id=owner, text=name)


def _unsupported(what: str) -> Lookup:
    """Return the lookup of objects that a service does not list."""
    return Lookup("", items=what)


class Hosting:
    """One hosting service, accessed with the token of one user.

    The parts of its lookups are the fields of the results. The cursors are what the service itself needs
    to find the next page, and never a URL, since clients send them back. Every method may raise the errors of
    requests (see `GitApi`), InvalidRequest for an invalid cursor or name, and BadRequest for what
    the service does not offer.
    """

    rest: ClassVar[str] = ""
    """Path of the API at the host; `usual_rest` is the URL of the public service's API, if elsewhere."""
    usual_rest: ClassVar[str] = ""
    graphql: ClassVar[str] = ""
    repos: ClassVar[str] = "/repos"
    """Path before the name of a repository."""
    size: ClassVar[str] = "per_page"
    """Query parameter for the size of a page."""
    page: ClassVar[str] = "page"
    """Query parameter for the number of a page, or of its first item."""
    pages: ClassVar[tuple[int, int]] = (1, PAGE_NUMBER_MAX)
    """First and last value of that parameter."""
    total: ClassVar[str] = ""
    """Header, or else part of a response, with the total number of items."""
    sorts: ClassVar[str] = ""
    """The host's names of sort orders, in the format of `parts`; `usual_sort` is the default."""
    usual_sort: ClassVar[str] = ""
    user: ClassVar[Lookup] = _unsupported("accounts")
    owners: ClassVar[Lookup] = _unsupported("installations")
    """Owners of repositories: installations, groups, organizations or workspaces."""
    listed: ClassVar[Lookup] = _unsupported("repositories")
    """Repositories of the user, by `{text}`, `{sort}` and `{order}`."""
    owned: ClassVar[Lookup] = _unsupported("repositories")
    """Repositories of an `{owner}`."""
    branched: ClassVar[Lookup] = _unsupported("branches")
    """Branches, with a `{text}` in their names."""
    directory: ClassVar[Lookup] = _unsupported("files")
    """The names of the entries of a directory, `{file}`, at the commit `{head}` if one is needed."""
    raw: ClassVar[str] = ""
    """Path of the text of a `{file}`; if empty, `directory` returns it in base64."""
    changed: ClassVar[Lookup] = _unsupported("files")
    """The time of the last change below a `{file}`."""

    def __init__(self, api: GitApi, base: str) -> None:
        self.api = self._api = api
        self._base = base

    def name_at(self, url: str) -> str | None:
        """Return the name of the repository at a URL, or None if the URL is not at this host."""
        if not git.is_below(url, self._base):
            return None
        return url[len(self._base) :].partition("?")[0].partition("#")[0].strip("/")

    @classmethod
    def places(cls, base: str, *, is_usual: bool) -> Places:
        """Return the API's URLs of the service at a base URL; `is_usual` for the public one."""
        rest = cls.usual_rest if is_usual and cls.usual_rest else base + cls.rest
        return Places(rest=rest, graphql=base + cls.graphql if cls.graphql else None)

    async def account(self) -> GitAccount:
        """Return the account that the token belongs to."""
        return self._one(GitAccount, self.user, (await self._ask(self.user)).value)

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the installations, workspaces, groups or organizations that own repositories."""
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
        """Return pull requests and issues that need attention, about a hundred at most."""
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
            raise NotFound("It is not a file, or the file is too large")
        return self._decoded(content)

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch, or None if unknown."""
        answer = await self._ask(self.changed, repository, await self._at(repository, directory))
        found = self._all(_Change, self.changed, answer.value)
        return found[0].at if found else None

    def place(self, repository: str) -> str:
        """Return the path of a repository; raises InvalidRequest for an invalid name."""
        return f"{self.repos}/{self._path(repository)}"

    def cursor_of(self, page: int, limit: int) -> str:
        """Return the cursor of a page by its number, assuming that earlier pages are full."""
        del limit
        return str(page)

    def counts_pages(self, query: RepositoryQuery) -> bool:
        """Return whether the pages of these repositories are numbered."""
        del query
        return True

    async def _at(self, _repository: str, path: str) -> dict[str, str]:
        """Return the values that locate a file on the main branch; raises InvalidRequest."""
        quoted_path(path)
        return {"file": path}

    async def _page[T](
        self, kind: type[T], lookup: Lookup, query: RepositoryQuery | BranchQuery, **more: str
    ) -> Listing[T]:
        """Return one page of items, sorted if the host supports the order."""
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
        """Return the cursor of the next page, or None on the last page."""
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
        present = {name: one for name, one in found.items() if one is not None}
        if isinstance(present.get("id"), int):
            present["id"] = str(present["id"])
        try:
            return msgspec.convert({"provider": self._api.provider, **present}, kind, strict=False)
        except msgspec.ValidationError as exc:
            raise self._api.unavailable(f"unexpected answer: {exc}") from exc

    def _tasks(
        self, lookup: Lookup, value: Any, kind: TaskType | None = None
    ) -> list[SuggestedTask]:
        """Return issues, all of one kind, or the pull requests that need attention."""
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
        """Decode the text of a file from base64."""
        try:
            return base64.b64decode(content).decode(errors="replace")
        except ValueError as exc:
            raise self._api.unavailable(f"unexpected answer: {exc}") from exc

    def _path(self, repository: str) -> str:
        """Return a repository's name as a path: validated, with percent-encoded parts."""
        segments = git.check_repository(repository, self._api.provider, loc=REPOSITORY_LOC)
        return "/".join(quoted(segment) for segment in segments)


def number_of(cursor: str | None, *, first: int = 1, last: int = PAGE_NUMBER_MAX) -> int:
    """Parse a cursor that is a number; raises InvalidRequest."""
    if cursor is None:
        return first
    if cursor.isascii() and cursor.isdecimal() and len(cursor) <= len(str(last)):
        number = int(cursor)
        if first <= number <= last:
            return number
    raise bad_cursor()


def next_number(cursor: str | None) -> str | None:
    """Return a valid page number from a service as a cursor, or None for anything else."""
    try:
        return str(number_of(cursor)) if cursor is not None else None
    except InvalidRequest:
        return None


def bad_cursor() -> InvalidRequest:
    """Return the error for an invalid cursor."""
    return InvalidRequest("page_id is not a valid `next_page_id`", loc=CURSOR_LOC)
