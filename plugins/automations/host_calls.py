"""Calls a git host's API for issues and pull requests of a repository, by the table of hosts."""

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from agentsvc.base import NotFound
from agentsvc.extension.conversations import check_repository
from agentsvc.extension.git import Hosting, Lookup, find, part_of, resolve

from .hosts import HOSTS, Body

type HostRecord = dict[str, str]
"""An object of a host's API: the parts that the table names, as strings."""

MARK: Final = "<!-- agentsvc:{id} -->"
"""Beginning of the server's own comments and pull requests, by which it finds them again."""

_PAGE_SIZE: Final = 50
_MAX_PAGES: Final = 10


class HostCalls:
    """The API calls for one repository with the token of one user; they raise as `Api`."""

    def __init__(self, hosting: Hosting, repository: str) -> None:
        self._api = hosting.api
        segments = check_repository(repository, self._api.provider)
        self._host = HOSTS[self._api.provider]
        self._place = hosting.place(repository)
        self._sized = {hosting.size: _PAGE_SIZE}
        self._names = {"owner": segments[0], "name": segments[-1]}

    async def changed(
        self, since: str, etag: str, *, pulls: bool = False
    ) -> tuple[list[HostRecord], str]:
        """Return the open issues changed since a time, or none if the ETag still holds, and an ETag.

        With `pulls`, return all open pull requests instead.
        """
        lookup = self._host.updated
        if pulls:
            lookup = self._below_pulls(f"?state={self._host.is_open}")
        path, query = self._resolve(lookup.path, {"since": since})
        answer = await self._api.call("GET", path, query={**query, **self._sized}, etag=etag)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            return [], etag
        found = self._records(lookup, answer.value)
        if len(found) >= _PAGE_SIZE:
            found += await self._list_all(lookup, {"since": since}, first=2)
        etag = answer.headers.get("ETag", "")
        # An ETag with other characters cannot be stored or sent.
        return found, etag if etag.isascii() and etag.isprintable() else ""

    async def name(self) -> str:
        """Return the current name of the repository; the host redirects from a former name."""
        lookup = Lookup("{repo}", {"name": self._host.full_name})
        return (await self._get(lookup, {}))["name"]

    async def issue(self, number: str) -> HostRecord:
        """Return an issue; raises NotFound."""
        return await self._get(
            Lookup("{repo}/issues/{number}", self._host.updated.parts), {"number": number}
        )

    async def pull(self, number: str) -> HostRecord:
        """Return a pull request; raises NotFound."""
        found = await self._get(self._below_pulls("/{number}"), {"number": number})
        if self._host.commit is not None:
            found |= await self._get(self._host.commit, {"commit": found["commit"]})
        return found

    async def comments(self, number: str, *, is_pull: bool = False) -> list[HostRecord]:
        """Return the comments of an issue, or the general ones of a pull request, oldest first."""
        return await self._list_all(self._host.comments, self._below(number, is_pull=is_pull))

    async def pull_comments(self, number: str) -> list[HostRecord]:
        """Return the comments and reviews of a pull request that have a text, oldest first."""
        found: list[HostRecord] = []
        for lookup in self._host.pull_comments:
            found += await self._list_all(lookup, {"number": number})
        return sorted((one for one in found if one["text"]), key=lambda one: one["at"])

    async def who_labelled(self, number: str, label: str) -> str:
        """Return the account that last added a label to an issue; empty if the host does not say."""
        if self._host.labelled is None:
            return ""
        found = await self._list_all(self._host.labelled, {"number": number})
        return next((one["actor"] for one in reversed(found) if one["label"] == label), "")

    async def may_write(self, actor: str) -> bool:
        """Return whether an account may write to the repository."""
        if not actor:
            return False
        lookup = self._host.access
        try:
            if lookup.items:
                found = await self._list_all(lookup, {"actor": actor})
            else:
                found = [await self._get(lookup, {"actor": actor})]
        except NotFound:
            return False
        return any(
            one["access"] in self._host.may_write and one.get("actor", actor) == actor
            for one in found
        )

    async def find_comment(self, number: str, mark: str, *, is_pull: bool = False) -> str | None:
        """Return the id of the comment that begins with a mark, or None."""
        found = await self.comments(number, is_pull=is_pull)
        return next((one["id"] for one in found if one["text"].startswith(mark)), None)

    async def write_comment(self, number: str, text: str, *, is_pull: bool = False) -> str:
        """Write a comment on an issue or a pull request, and return its id."""
        below = self._below(number, is_pull=is_pull)
        path = self._host.comments.path.partition("?")[0]
        made = await self._send(f"POST {path}", self._host.comment, {**below, "text": text})
        return part_of(made, "id")

    async def edit_comment(
        self, number: str, comment_id: str, text: str, *, is_pull: bool = False
    ) -> None:
        """Replace the text of a comment; raises NotFound."""
        below = self._below(number, is_pull=is_pull)
        values = {**below, "id": comment_id, "text": text}
        await self._send(self._host.edit, self._host.comment, values)

    async def find_pull(self, branch: str) -> HostRecord | None:
        """Return the pull request of a branch of the repository itself, not of a fork."""
        found = await self._list_all(self._host.pulls, {"branch": branch})
        own = (one for one in found if one["source"] == one["target"])
        return next((one for one in own if one["branch"] == branch), None)

    async def open_pull(self, *, branch: str, base: str, title: str, text: str) -> HostRecord:
        """Open a draft pull request."""
        values = {"branch": branch, "base": base, "title": title, "text": text}
        pulls = self._below_pulls()
        made = await self._send(f"POST {pulls.path}", self._host.open_pull, values)
        return self._record(pulls, made)

    async def pull_state(self, number: str) -> str:
        """Return the host's name of a pull request's state in lower case; empty if it is open."""
        state = (await self._get(self._below_pulls("/{number}"), {"number": number}))["state"]
        return "" if state == self._host.is_open else state.lower()

    async def failed_checks(self, commit: str) -> list[str]:
        """Return the names of the failed checks of a commit."""
        found: list[HostRecord] = []
        for lookup in self._host.checks:
            found += await self._list_all(lookup, {"commit": commit})
        return sorted({one["name"] for one in found})

    def _below(self, number: str, *, is_pull: bool) -> dict[str, str]:
        return {"number": number, "below": self._host.below_pulls if is_pull else "issues"}

    async def _get(self, lookup: Lookup, values: Mapping[str, str]) -> HostRecord:
        path, query = self._resolve(lookup.path, values)
        return self._record(lookup, (await self._api.call("GET", path, query=query)).value)

    async def _list_all(
        self, lookup: Lookup, values: Mapping[str, str], *, first: int = 1
    ) -> list[HostRecord]:
        path, query = self._resolve(lookup.path, values)
        found: list[HostRecord] = []
        value: Any = None
        for page in range(first, first + _MAX_PAGES):
            sized = {**query, **self._sized, "page": page}
            last, value = value, (await self._api.call("GET", path, query=sized)).value
            if value == last:  # Forgejo and Gitea return all comments on each page
                break
            found += self._records(lookup, value)
            if len(_items(lookup, value)) < _PAGE_SIZE:
                break
        return found

    def _below_pulls(self, path: str = "") -> Lookup:
        pulls = self._host.pulls
        return Lookup(pulls.path.partition("?")[0] + path, pulls.parts, items=pulls.items)

    async def _send(self, what: str, body: Body, values: Mapping[str, str]) -> Any:
        method, _, path = what.partition(" ")
        where, _ = self._resolve(path, values)
        return (await self._api.call(method, where, body=body(values))).value

    def _resolve(
        self, path: str, values: Mapping[str, str]
    ) -> tuple[str, dict[str, str | int | bool | None]]:
        known = {**self._names, **values}
        return resolve(path, known, self._place, quoting=partial(quote, safe=""))

    def _records(self, lookup: Lookup, value: Any) -> list[HostRecord]:
        return [self._record(lookup, one) for one in lookup.fitting(_items(lookup, value))]

    def _record(self, lookup: Lookup, value: Any) -> HostRecord:
        if not isinstance(value, dict):
            raise self._api.unavailable("unexpected answer")
        return {name: part_of(value, place) for name, place in lookup.parts.items()}


def _items(lookup: Lookup, value: Any) -> list[Any]:
    found = find(value, lookup.items) if lookup.items else value
    return found if isinstance(found, list) else []
