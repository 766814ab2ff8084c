"""GitHub: at github.com, with data residency at ghe.com, or as a self-hosted Enterprise Server."""

from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from agentsvc.base import InvalidRequest, NotAllowed, NotFound
from agentsvc.domain import Provider, SuggestedTask, TaskType
from agentsvc.git.hosting import Hosting, Item, Places, bad_cursor
from agentsvc.git.lookup import INSTALLATION_LOC, Lookup, case, find, part_of, parts
from agentsvc.git.model import (
    Branch,
    BranchQuery,
    Listing,
    OwnerType,
    Repository,
    RepositoryQuery,
)

_REPOSITORY: Final = parts(
    "id full_name stars=stargazers_count forks=forks_count pushed_at main_branch=default_branch",
    is_public=case("private", {"false": True}, False),
    owner_type=case("owner.type", {"Organization": OwnerType.ORGANIZATION}, OwnerType.USER),
)
_FOUND: Final = Lookup(
    "/search/repositories?q={words}&sort={sort}&order={order}", _REPOSITORY, items="items"
)
_ORGANIZATIONS: Final = Lookup("/user/orgs?per_page=100", parts("id=login"))
_INSTALLATIONS: Final = Lookup(
    "/user/installations?per_page=100", parts("id login=account.login"), items="installations"
)
_REFS: Final = Lookup(
    "",
    parts(
        "name commit_sha=target.oid pushed_at=target.committedDate",
        is_protected=lambda one: find(one, "branchProtectionRule") is not None,
    ),
    items="refs.nodes",
)
_ISSUES: Final = Lookup(
    "", parts("number title repo=repository.nameWithOwner"), items="search.nodes"
)
_PULLS: Final = Lookup(
    "",
    parts(
        "number title repo=repository.nameWithOwner",
        conflicts=case("mergeable", {"CONFLICTING": True}, False),
        fails=case(
            "commits.nodes.0.commit.statusCheckRollup.state",
            {"FAILURE": True, "ERROR": True},
            False,
        ),
        threads=lambda one: int(find(one, "reviews.nodes.0") is not None),
    ),
    items="viewer.pullRequests.nodes",
)

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
_SEARCH_SORTS: Final = parts("stars forks updated")


class _Installation(Struct, frozen=True):
    id: str
    login: str | None = None


class GitHub(Hosting):
    """GitHub, accessed with the token of one user."""

    total = "total_count"
    sorts = "pushed updated created full_name"
    usual_sort = "pushed"
    user = Lookup("/user", parts("id login avatar_url company name email"))
    owners = Lookup("/user/installations", parts("id"), items="installations")
    listed = Lookup("/user/repos?sort={sort}&direction={order}", _REPOSITORY)
    owned = Lookup("/user/installations/{owner}/repositories", _REPOSITORY, items="repositories")
    branched = Lookup("{repo}/branches", parts("name commit_sha=commit.sha is_protected=protected"))
    directory = Lookup("{repo}/contents/{+file}", parts("id=name"), when={"type": "file"})
    changed = Lookup("{repo}/commits?path={file}&per_page=1", parts("at=commit.committer.date"))

    @classmethod
    def places(cls, base: str, *, is_usual: bool) -> Places:
        """Return the URLs of the API: on a host of its own, or as paths of an Enterprise Server."""
        host = urlsplit(base).hostname or ""
        if is_usual or host.endswith(".ghe.com"):
            api = f"https://api.{host}"
            return Places(rest=api, graphql=f"{api}/graphql")
        return Places(rest=f"{base}/api/v3", graphql=f"{base}/api/graphql")

    async def installations(self, cursor: str | None, limit: int) -> Listing[str]:
        """Return the installations that the token sees; none, unless it is the token of an App."""
        try:
            return await super().installations(cursor, limit)
        except NotAllowed:
            return Listing(items=[])

    async def organizations(self) -> list[str]:
        """Return the organizations of the user."""
        found = (await self._ask(_ORGANIZATIONS)).value
        return [one.id for one in self._all(Item, _ORGANIZATIONS, found)]

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories of the user as owner, collaborator or member, filtered by name."""
        installation = query.installation_id
        if installation is not None and not _is_number(installation):
            raise InvalidRequest("An installation id at GitHub is a number", loc=INSTALLATION_LOC)
        if not query.text:
            return await super().repositories(query)
        words, sort = await self._search_terms(query), _SEARCH_SORTS.get(query.sort.value, "")
        return await self._page(Repository, _FOUND, query, words=words, sort=sort)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches; with a text, those whose names contain it."""
        if not query.text:
            return await super().branches(query)
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
        answer = await self._api.query(BRANCHES_QUERY, dict[str, Any], variables)
        found = find(answer, "repository")
        if find(found, "refs") is None:
            raise NotFound(f"Not found at the git provider `{Provider.GITHUB.value}`")
        has_more = find(found, "refs.pageInfo.hasNextPage") is True
        cursor = part_of(found, "refs.pageInfo.endCursor") or None if has_more else None
        return self._listing(Branch, _REFS, found, cursor, find(found, "refs.totalCount"))

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return the user's open pull requests that need attention, and assigned issues."""
        found = await self._api.query(TASKS_QUERY, dict[str, Any], {"issues": ISSUES_SEARCH})
        return self._tasks(_PULLS, found) + self._tasks(_ISSUES, found, TaskType.OPEN_ISSUE)

    async def _search_terms(self, query: RepositoryQuery) -> str:
        """Return the search terms: a name among the repositories of one owner, or of the user."""
        owner, slash, name = query.text.partition("/")
        if query.installation_id is not None:
            owners, name = [await self._owner_of(query.installation_id)], query.text
        elif slash:
            owners = [owner]
        else:
            name = owner
            owners = [(await self.account()).login, *await self._visible_organizations()]
        return " ".join([f"{name} in:name fork:true", *(f"user:{one}" for one in owners)]).strip()

    async def _visible_organizations(self) -> list[str]:
        """Return the organizations of the user, none if the token's scopes do not allow it."""
        try:
            return (await self.organizations())[:_ORGANIZATIONS_MAX]
        except NotAllowed:
            return []

    async def _owner_of(self, installation: str) -> str:
        found = (await self._ask(_INSTALLATIONS)).value
        for one in self._all(_Installation, _INSTALLATIONS, found):
            if one.id == str(int(installation)) and one.login is not None:
                return one.login
        raise NotFound("There is no such installation")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20  # noqa: PLR2004  # 64 bits
