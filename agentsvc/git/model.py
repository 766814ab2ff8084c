"""Provider-independent records of repositories, branches and tasks."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentsvc.base import MAX_INT
from agentsvc.domain import Provider

PAGE_MAX: Final = 100
"""Maximum page size; no service returns more items at a time."""

type Number = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
"""An integer in a response of a service, limited to 64 bits because it is sent to clients."""


class GitAccount(Struct, frozen=True, kw_only=True):
    """The account of a token, as described by the provider."""

    id: str
    login: str
    avatar_url: str = ""
    company: str | None = None
    name: str | None = None
    email: str | None = None


class OwnerType(StrEnum):
    """The kind of a repository's owner."""

    USER = "user"
    ORGANIZATION = "organization"


class Repository(Struct, frozen=True, kw_only=True):
    """A repository at a provider; None for fields that the provider does not return."""

    id: str
    full_name: str
    provider: Provider
    is_public: bool
    stars: Number | None = None
    forks: Number | None = None
    pushed_at: str | None = None
    owner_type: OwnerType | None = None
    main_branch: str | None = None


class Branch(Struct, frozen=True, kw_only=True):
    """A branch of a repository."""

    name: str
    commit_sha: str
    is_protected: bool = False
    pushed_at: str | None = None


class File(Struct, frozen=True, kw_only=True):
    """A file in a directory of a repository."""

    name: str
    path: str


class SortBy(StrEnum):
    """The sort order of repositories, if the provider supports it."""

    PUSHED = "pushed"
    UPDATED = "updated"
    CREATED = "created"
    NAME = "full_name"
    STARS = "stars"
    FORKS = "forks"


class RepositoryQuery(Struct, frozen=True, kw_only=True):
    """A query for the repositories of the user, or those of them that match a text.

    `installation_id` narrows them to one installation, workspace, group or organization.
    """

    text: str = ""
    installation_id: str | None = None
    sort: SortBy = SortBy.PUSHED
    is_ascending: bool = False
    cursor: str | None = None
    limit: int = PAGE_MAX


class BranchQuery(Struct, frozen=True, kw_only=True):
    """A query for branches of a repository; `text` is a part of the name."""

    repository: str
    text: str = ""
    cursor: str | None = None
    limit: int = PAGE_MAX


class Listing[T](Struct, frozen=True, kw_only=True):
    """One page of a provider's list; `cursor` is for the next page, None on the last one.

    `total` is the number of items on all pages, None if the provider does not return it.
    """

    items: list[T]
    cursor: str | None = None
    total: int | None = None
