"""The interface that every git hosting service implements."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from agentsvc.base import BadRequest, InvalidRequest
from agentsvc.domain import SuggestedTask, TaskType
from agentsvc.domain import repositories as git
from agentsvc.git.client import Api
from agentsvc.git.model import (
    PAGE_MAX,
    Branch,
    BranchQuery,
    File,
    GitAccount,
    Listing,
    Repository,
    RepositoryQuery,
)

PAGE_NUMBER_MAX: Final = 100_000

REPOSITORY_LOC: Final = ("query", "repository")
INSTALLATION_LOC: Final = ("query", "installation_id")
CURSOR_LOC: Final = ("query", "page_id")
PATH_LOC: Final = ("query", "file_path")


class Places(NamedTuple):
    """Where a service answers."""

    rest: str
    graphql: str | None = None


class Hosting(ABC):
    """One hosting service, as the token of one user opens it.

    The cursors are what the service itself needs to find the next page, and never an address: they
    come back from clients. Every method may raise what requests raise (see `Api`), InvalidRequest
    for a cursor or name that cannot be, and BadRequest for what the service does not offer.
    """

    def __init__(self, api: Api, base: str) -> None:
        self._api = api
        self._base = base

    def name_at(self, url: str) -> str | None:
        """Return the name of the repository at a URL, None for one of another place."""
        if not git.is_below(url, self._base):
            return None
        return url[len(self._base) :].partition("?")[0].partition("#")[0].strip("/")

    @staticmethod
    @abstractmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return where the service at this address answers; `is_usual` for the public one."""

    @abstractmethod
    async def account(self) -> GitAccount:
        """Return whose token it is."""

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the installations, workspaces, groups or organizations repositories belong to."""
        raise self._not_offered("installations")

    async def organizations(self) -> list[str]:
        """Return the names of the first organizations, groups or workspaces of the user."""
        return (await self.installations(None, PAGE_MAX)).items

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories of the user."""
        raise self._not_offered("repositories")

    async def repository(self, name: str) -> Repository:
        """Return one repository; raises NotFound."""
        raise self._not_offered("repositories")

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches of a repository."""
        raise self._not_offered("branches")

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return what there is to do for the user, the first hundred or so of it."""
        return []

    async def files(self, repository: str, directory: str) -> list[File]:
        """Return the files of a directory on the main branch; raises NotFound."""
        raise self._not_offered("files")

    async def content(self, repository: str, path: str) -> str:
        """Return the text of a file on the main branch; raises NotFound."""
        raise self._not_offered("files")

    async def changed_at(self, repository: str, directory: str) -> str | None:
        """Return when a directory was last changed on the main branch, if the service tells."""
        raise self._not_offered("files")

    def cursor_of(self, page: int, limit: int) -> str:
        """Return the cursor of a page by its number, if those before it are full."""
        del limit
        return str(page)

    def counts_pages(self, query: RepositoryQuery) -> bool:
        """Tell whether the pages of these repositories have numbers."""
        del query
        return True

    def _task(self, kind: TaskType, repository: str, number: int, title: str) -> SuggestedTask:
        return SuggestedTask(
            provider=self._api.provider,
            task_type=kind,
            repo=repository,
            issue_number=number,
            title=title,
        )

    def _not_offered(self, what: str) -> BadRequest:
        return BadRequest(f"The git provider `{self._api.provider.value}` is not asked for {what}")

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


def quoted(text: str, loc: Sequence[str | int] = INSTALLATION_LOC) -> str:
    """Return a text as one part of a path; raises InvalidRequest for one that leads elsewhere."""
    if text in {"", ".", ".."}:
        raise InvalidRequest("Input should be a name", loc=loc)
    return quote(text, safe="")


def quoted_path(path: str) -> str:
    """Return the path of a file with its parts quoted; raises InvalidRequest."""
    return "/".join(quoted(part, PATH_LOC) for part in path.split("/"))


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
