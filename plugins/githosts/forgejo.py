"""Forgejo, and Gitea, of which it is a fork: at codeberg.org, or self-hosted."""

from typing import Final

from msgspec import Struct

from agentsvc.extension.git import (
    Branch,
    BranchQuery,
    Hosting,
    Item,
    Listing,
    Lookup,
    OwnerType,
    Repository,
    RepositoryQuery,
    SuggestedTask,
    Task,
    TaskType,
    case,
    find,
    number_of,
    parts,
)

_SEARCHED_PAGES_MAX: Final = 20
_PULLS_MAX: Final = 10

_REPOSITORY: Final = parts(
    "id full_name stars=stars_count forks=forks_count pushed_at=updated_at "
    "main_branch=default_branch",
    is_public=case("private", {"false": True}, False),
)
_ISSUE: Final = parts("number title repo=repository.full_name")
_SEARCH: Final = "/repos/issues/search?state=open"
_ISSUES: Final = Lookup(f"{_SEARCH}&type=issues&assigned=true&limit=50", _ISSUE)
_PULLS: Final = Lookup(f"{_SEARCH}&type=pulls&created=true&limit={_PULLS_MAX}", _ISSUE)
_PULL: Final = Lookup("{repo}/pulls/{number}")
_STATUS: Final = Lookup("{repo}/commits/{commit}/status")
_FOUND: Final = Lookup(
    "/repos/search?q={name}&uid={id}&exclusive={is_one}&sort={sort}&order={order}",
    _REPOSITORY,
    items="data",
)


class _Review(Struct, frozen=True):
    state: str = ""
    dismissed: bool = False
    stale: bool = False


_REVIEWS: Final = Lookup("{repo}/pulls/{number}/reviews?limit=100", parts("state dismissed stale"))


class Forgejo(Hosting):
    """Forgejo, accessed with the token of one user."""

    rest = "/api/v1"
    size = "limit"
    total = "X-Total-Count"
    sorts = "stars forks created full_name=alpha"
    usual_sort = "updated"
    user = Lookup("/user", parts("id login avatar_url name=full_name email"))
    owners = Lookup("/user/orgs", parts("id=username|name"))
    listed = Lookup("/user/repos", _REPOSITORY)
    owned = Lookup(
        "/orgs/{owner}/repos", {**_REPOSITORY, "owner_type": lambda _: OwnerType.ORGANIZATION}
    )
    branched = Lookup(
        "{repo}/branches",
        parts("name commit_sha=commit.id is_protected=protected pushed_at=commit.timestamp"),
    )
    directory = Lookup("{repo}/contents/{+file}", parts("id=name"), when={"type": "file"})
    # Gitea ignores the limit if a path is given, so each commit is requested without details.
    changed = Lookup(
        "{repo}/commits?path={file}&limit=1&stat=false&verification=false&files=false",
        parts("at=created"),
    )

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories that the user owns or contributes to; a text filters them by name."""
        if not query.text:
            return await super().repositories(query)
        owner, slash, name = query.text.partition("/")
        path, values = "/user", {}
        if query.installation_id is not None:
            path, values, name = "/orgs/{name}", {"name": query.installation_id}, query.text
        elif slash:
            path, values = "/users/{name}", {"name": owner}
        else:
            name = owner
        lookup = Lookup(path, parts("id"))
        found = self._one(Item, lookup, (await self._ask(lookup, None, values)).value)
        is_one = "true" if values else "false"
        return await self._page(Repository, _FOUND, query, name=name, id=found.id, is_one=is_one)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; a text is matched here, since the service cannot filter by name."""
        if not query.text:
            return await super().branches(query)
        first = number_of(query.cursor, first=0)
        wanted = first + query.limit
        found: list[Branch] = []
        for page in range(1, _SEARCHED_PAGES_MAX + 1):
            # By default, a server returns at most 50 per page.
            asked = BranchQuery(repository=query.repository, cursor=str(page), limit=50)
            listing = await super().branches(asked)
            found += [one for one in listing.items if query.text.lower() in one.name.lower()]
            if len(found) > wanted or listing.cursor is None:
                break
        cursor = str(wanted) if len(found) > wanted else None
        return Listing(items=found[first:wanted], cursor=cursor)

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return pull requests of the user that need attention, and issues assigned to the user."""
        pulls = self._all(Task, _PULLS, (await self._ask(_PULLS)).value)
        issues = (await self._ask(_ISSUES)).value
        # A server may return more than the requested limit.
        needs = [(await self._need(one), one) for one in pulls[:_PULLS_MAX]]
        return [
            self._task(kind, one.repo, one.number, one.title) for kind, one in needs if kind
        ] + self._tasks(_ISSUES, issues, TaskType.OPEN_ISSUE)

    async def _need(self, pull: Task) -> TaskType | None:
        """Return the most important need of a pull request, or None."""
        values = {"number": str(pull.number)}
        found = (await self._ask(_PULL, pull.repo, values)).value
        if find(found, "mergeable") is False:
            return TaskType.MERGE_CONFLICTS
        commit = {"commit": str(find(found, "head.sha") or "")}
        status = (await self._ask(_STATUS, pull.repo, commit)).value
        if find(status, "state") in ("failure", "error"):
            return TaskType.FAILING_CHECKS
        reviews = self._all(_Review, _REVIEWS, (await self._ask(_REVIEWS, pull.repo, values)).value)
        is_open = any(
            one.state == "REQUEST_CHANGES" and not one.dismissed and not one.stale
            for one in reviews
        )
        return TaskType.UNRESOLVED_COMMENTS if is_open else None
