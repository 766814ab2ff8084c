"""Bitbucket Cloud, whose repositories are in workspaces: no request lists all of them."""

from typing import Any, Final

from msgspec.structs import replace

from agentsvc.base import NotFound
from agentsvc.extension.git import (
    PAGE_MAX,
    Answer,
    Branch,
    BranchQuery,
    Hosting,
    Item,
    Listing,
    Lookup,
    Repository,
    RepositoryQuery,
    SuggestedTask,
    bad_cursor,
    case,
    in_owner,
    next_number,
    page_in,
    part_of,
    parts,
)

_WORKSPACES_MAX: Final = 10

_REPOSITORY: Final = parts(
    "id=uuid full_name pushed_at=updated_on main_branch=mainbranch.name",
    is_public=case("is_private", {"false": True}, False),
)
_BRANCH: Final = parts("name commit_sha=target.hash pushed_at=target.date")
_PULLS: Final = Lookup(
    "/workspaces/{workspace}/pullrequests/{author}?state=OPEN&pagelen=50",
    parts("number=id title repo=destination.repository.full_name threads=task_count"),
    items="values",
)


class Bitbucket(Hosting):
    """Bitbucket Cloud, accessed with the token of one user."""

    rest = "/2.0"
    usual_rest = "https://api.bitbucket.org/2.0"
    repos = "/repositories"
    size = "pagelen"
    total = "size"
    sorts = "created=created_on full_name"
    usual_sort = "updated_on"
    user = Lookup(
        "/user",
        parts(
            "id=account_id|uuid avatar_url=links.avatar.href name=display_name",
            # The account of a repository's or a workspace's token has neither name.
            login=lambda one: part_of(one, "username|nickname"),
        ),
    )
    owners = Lookup("/user/workspaces", parts("id=workspace.slug"), items="values")
    listed = owned = Lookup(
        "/repositories/{owner}?role=member&q={text}&sort={direction}{sort}",
        _REPOSITORY,
        items="values",
    )
    branched = Lookup("{repo}/refs/branches?q={text}&sort=-target.date", _BRANCH, items="values")
    directory = Lookup(
        "{repo}/src/{head}/{+file}/?pagelen=100",
        parts("id=path"),
        when={"type": "commit_file"},
        items="values",
    )
    raw = "{repo}/src/{head}/{+file}"
    changed = Lookup(
        "{repo}/commits/{head}?path={file}&pagelen=1", parts("at=date"), items="values"
    )

    async def repositories(self, query: RepositoryQuery) -> Listing[Repository]:
        """Return repositories of a workspace, or of the user's workspaces one after the other.

        A page contains those of one workspace, so it may be short although there are more. Workspaces
        without matches are skipped.
        """
        scoped = in_owner(query)
        if scoped.installation_id is not None:
            return await self._in_workspace(scoped.installation_id, scoped, scoped.cursor)
        workspaces = (await self.installations(None, PAGE_MAX)).items
        if not workspaces:
            return Listing(items=[])
        workspace, page = workspaces[0], None
        if query.cursor is not None:
            workspace, _, page = query.cursor.partition("/")
        if workspace not in workspaces:
            raise bad_cursor()
        rest = workspaces[workspaces.index(workspace) :]
        found = await self._in_workspace(rest[0], query, page)
        while not found.items and found.cursor is None and len(rest) > 1:
            rest = rest[1:]
            found = await self._in_workspace(rest[0], query, None)
        if found.cursor is not None:
            return Listing(items=found.items, cursor=f"{rest[0]}/{found.cursor}")
        return Listing(items=found.items, cursor=f"{rest[1]}/1" if len(rest) > 1 else None)

    async def branches(self, query: BranchQuery) -> Listing[Branch]:
        """Return branches, the last changed first; with a text, those whose names contain it."""
        return await super().branches(replace(query, text=_name_like(query.text)))

    async def suggested_tasks(self) -> list[SuggestedTask]:
        """Return open pull requests of the user that have open tasks."""
        lookup = Lookup("/user", parts("id=uuid"))
        author = self._one(Item, lookup, (await self._ask(lookup)).value).id
        tasks = []
        for workspace in (await self.installations(None, _WORKSPACES_MAX)).items:
            values = {"workspace": workspace, "author": author}
            tasks += self._tasks(_PULLS, (await self._ask(_PULLS, None, values)).value)
        return tasks

    def counts_pages(self, query: RepositoryQuery) -> bool:
        """Return whether the repositories are all in one workspace."""
        return in_owner(query).installation_id is not None

    async def _in_workspace(
        self, workspace: str, query: RepositoryQuery, cursor: str | None
    ) -> Listing[Repository]:
        scoped = replace(
            query, installation_id=workspace, text=_name_like(query.text), cursor=cursor
        )
        direction = "" if query.is_ascending else "-"
        return await self._page(Repository, self.owned, scoped, direction=direction)

    async def _at(self, repository: str, path: str) -> dict[str, str]:
        """Add the main branch's commit, since a path cannot contain a branch name with a slash."""
        name = (await self.repository(repository)).main_branch
        if name is None:
            raise NotFound("The repository is empty")
        lookup = Lookup("{repo}/refs/branches/{name}", _BRANCH)
        found = (await self._ask(lookup, repository, {"name": name})).value
        head = self._one(Branch, lookup, found).commit_sha
        return {**await super()._at(repository, path), "head": head}

    def _next(self, answer: Answer[Any]) -> str | None:
        return next_number(page_in(part_of(answer.value, "next")))


def _name_like(text: str) -> str:
    """Return the filter for names that contain a text."""
    quoted_text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'name ~ "{quoted_text}"' if text else ""
