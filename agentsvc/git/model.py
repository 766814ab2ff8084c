"""Provider-independent records of repositories, branches and tasks."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from agentsvc.base import MAX_INT
from agentsvc.domain import Provider

PAGE_MAX: Final = 100
"""The most items a page may have; no service gives more."""

type Number = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
"""An integer a service answers with, which is sent on."""


class GitAccount(Struct, frozen=True, kw_only=True):
    """The user a token belongs to, as the provider describes them."""

    id: str
    login: str
    avatar_url: str = ""
    company: str | None = None
    name: str | None = None
    email: str | None = None


class OwnerType(StrEnum):
    """Who owns a repository."""

    USER = "user"
    ORGANIZATION = "organization"


class Repository(Struct, frozen=True, kw_only=True):
    """A repository at a provider; None stands for what the provider does not tell."""

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
    """What repositories are sorted by, as far as the provider can."""

    PUSHED = "pushed"
    UPDATED = "updated"
    CREATED = "created"
    NAME = "full_name"
    STARS = "stars"
    FORKS = "forks"


class RepositoryQuery(Struct, frozen=True, kw_only=True):
    """Which repositories are wanted: those of the user, or of them those a text is found in.

    `installation_id` narrows them to one installation, workspace, group or organization.
    """

    text: str = ""
    installation_id: str | None = None
    sort: SortBy = SortBy.PUSHED
    is_ascending: bool = False
    cursor: str | None = None
    limit: int = PAGE_MAX


class BranchQuery(Struct, frozen=True, kw_only=True):
    """Which branches of a repository are wanted; `text` is a part of the name."""

    repository: str
    text: str = ""
    cursor: str | None = None
    limit: int = PAGE_MAX


class Listing[T](Struct, frozen=True, kw_only=True):
    """One page of what a provider has; `cursor` asks for the next one, None on the last.

    `total` is how many there are on all pages, None if the provider does not tell.
    """

    items: list[T]
    cursor: str | None = None
    total: int | None = None
