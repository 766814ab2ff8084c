"""Bitbucket Data Center, which shares only its name with Bitbucket Cloud."""

from datetime import UTC, datetime
from typing import Any, Final

from agentsvc.base import to_stored
from agentsvc.extension.git import (
    REPOSITORY_LOC,
    Answer,
    GitAccount,
    Hosting,
    Listing,
    Lookup,
    OwnerType,
    Repository,
    RepositoryQuery,
    SuggestedTask,
    case,
    check_repository,
    find,
    in_owner,
    part_of,
    parts,
    quoted,
    refused,
)

_REST: Final = "/rest/api/1.0"
_START_MAX: Final = 10_000_000
_MILLISECONDS_MAX: Final = 10**14


def _full_name(one: Any) -> str | None:
    key, slug = part_of(one, "project.key"), part_of(one, "slug")
    return f"{key}/{slug}" if key and slug else None


def _changed(one: Any) -> str | None:
    moment = find(one, "committerTimestamp")
    if not isinstance(moment, int) or not 0 <= moment < _MILLISECONDS_MAX:
        return None
    return to_stored(datetime.fromtimestamp(moment / 1000, UTC))


_PULLS: Final = Lookup(
    f"{_REST}/dashboard/pull-requests?role=AUTHOR&state=OPEN&limit=50",
    parts(
        "number=id title threads=properties.openTaskCount",
        repo=lambda one: _full_name(find(one, "toRef.repository")),
        conflicts=case("properties.mergeResult.outcome", {"CONFLICTED": True}, False),
    ),
    items="values",
)


class DataCenter(Hosting):
    """Bitbucket Data Center, accessed with the token of one user."""

    size = "limit"
    page = "start"
    pages = (0, _START_MAX)
    user = Lookup(
        f"{_REST}/users/{{login}}", parts("id login=slug name=displayName email=emailAddress")
    )
    owners = Lookup(f"{_REST}/projects", parts("id=key"), items="values")
    listed = owned = Lookup(
        f"{_REST}/repos?projectkey={{owner}}&name={{text}}&permission=REPO_READ",
        parts(
            "id",
            full_name=_full_name,
            is_public=case("public", {"true": True}, False),
            owner_type=case("project.type", {"PERSONAL": OwnerType.USER}, OwnerType.ORGANIZATION),
        ),
        items="values",
    )
    branched = Lookup(
        "{repo}/branches?filterText={text}&orderBy=MODIFICATION",
        parts("name=displayId commit_sha=latestCommit"),
        items="values",
    )
    directory = Lookup(
        "{repo}/browse/{+file}?limit=100",
        parts("id=path.name"),
        when={"type": "FILE"},
        items="children.values",
    )
    raw = "{repo}/raw/{+file}"
    changed = Lookup("{repo}/commits?path={file}&limit=1", {"at": _changed}, items="values")

    async def account(self) -> GitAccount:
        """Return the account that the token belongs to."""
        # It returns only the name, and an empty body without a valid token.
        login = (await self._api.get_text("/plugins/servlet/applinks/whoami")).strip()
        if not login:
            raise refused(self._api.provider)
        answer = await self._ask(self.user, None, {"login": login})
        return self._one(GitAccount, self.user, answer.value)

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories that the user may read; a text filters them by name."""
        return await super().repositories(in_owner(query))

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open pull requests of the user that conflict or have open tasks."""
        return self._tasks(_PULLS, (await self._ask(_PULLS)).value)

    def cursor_of(self, page: int, limit: int) -> str:
        """Return the index of a page's first item as its cursor."""
        return str((page - 1) * limit)

    def place(self, repository: str) -> str:
        """Return the path of a repository, in its project."""
        project, name = check_repository(repository, self._api.provider, loc=REPOSITORY_LOC)
        return f"{_REST}/projects/{quoted(project)}/repos/{quoted(name)}"

    def _next(self, answer: Answer[Any]) -> str | None:
        start = find(answer.value, "nextPageStart")
        is_last = find(answer.value, "isLastPage") is not False
        return None if is_last or start is None else str(start)
