"""GitLab: at gitlab.com, or self-hosted."""

from typing import Any, Final

from agentsvc.domain import SuggestedTask, TaskType
from agentsvc.git.hosting import Hosting
from agentsvc.git.lookup import Lookup, case, part_of, parts
from agentsvc.git.model import Listing, OwnerType, Repository, RepositoryQuery, SortBy

_PROJECT: Final = parts(
    "id full_name=path_with_namespace stars=star_count forks=forks_count "
    "pushed_at=last_activity_at main_branch=default_branch",
    is_public=case("visibility", {"public": True}, False),
    owner_type=case("namespace.kind", {"group": OwnerType.ORGANIZATION}, OwnerType.USER),
)
_PROJECTS: Final = "search={text}&archived=false&order_by={sort}&sort={order}"
_MERGE_REQUESTS: Final = Lookup(
    "",
    parts(
        "number=iid title repo=project.fullPath conflicts "
        "threads=resolvableDiscussionsCount resolved=resolvedDiscussionsCount",
        fails=case("headPipeline.status", {"FAILED": True}, False),
    ),
    items="currentUser.authoredMergeRequests.nodes",
)
_ISSUES: Final = Lookup(
    "/issues?scope=assigned_to_me&state=opened&per_page=50",
    parts(
        "number=iid title",
        repo=lambda one: part_of(one, "references.full").partition("#")[0] or None,
    ),
)

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
    """GitLab, accessed with the token of one user."""

    rest = "/api/v4"
    graphql = "/api/graphql"
    total = "X-Total"
    sorts = "updated=updated_at created=created_at full_name=path stars=star_count"
    usual_sort = "last_activity_at"
    user = Lookup("/user", parts("id login=username avatar_url company=organization name email"))
    # Level 10 is "guest", the lowest level of a group's members.
    owners = Lookup("/groups?min_access_level=10", parts("id=full_path"))
    listed = Lookup(
        f"/projects?membership=true&search_namespaces={{is_search}}&{_PROJECTS}", _PROJECT
    )
    owned = Lookup(f"/groups/{{owner}}/projects?include_subgroups=true&{_PROJECTS}", _PROJECT)
    branched = Lookup(
        "{repo}/repository/branches?search={text}",
        parts("name commit_sha=commit.id is_protected=protected pushed_at=commit.committed_date"),
    )
    directory = Lookup(
        "{repo}/repository/tree?path={file}&per_page=100", parts("id=name"), when={"type": "blob"}
    )
    raw = "{repo}/repository/files/{file}/raw?ref=HEAD"
    changed = Lookup("{repo}/repository/commits?path={file}&per_page=1", parts("at=committed_date"))

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return projects of which the user is a member, or those of a group and its subgroups."""
        found = await super().repositories(query)
        if query.sort is SortBy.FORKS:
            # GitLab cannot sort by the number of forks.
            found.items.sort(key=lambda one: one.forks or 0, reverse=not query.is_ascending)
        return found

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open merge requests that need attention, and issues assigned to the user."""
        found = await self._api.query(TASKS_QUERY, dict[str, Any], {})
        issues = (await self._ask(_ISSUES)).value
        merge_requests = self._tasks(_MERGE_REQUESTS, found) if found.get("currentUser") else []
        return merge_requests + self._tasks(_ISSUES, issues, TaskType.OPEN_ISSUE)

    def place(self, repository: str) -> str:
        """Return the path of a project."""
        return f"/projects/{self._path(repository).replace('/', '%2F')}"
