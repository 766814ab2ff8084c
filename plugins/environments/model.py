"""Prepared environments as they are stored. Pure."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.base import matching
from agentsvc.extension.conversations import Provider, SentRepository
from agentsvc.extension.web import EnvName

WATCHED: Final = (
    ".agentsvc/setup.sh",
    ".devcontainer.json",
    ".devcontainer/*",
    ".openhands/setup.sh",
    "*Cargo.lock",
    "*Gemfile.lock",
    "*composer.lock",
    "*go.sum",
    "*package-lock.json",
    "*pnpm-lock.yaml",
    "*poetry.lock",
    "*pyproject.toml",
    "*requirements*.txt",
    "*uv.lock",
    "*yarn.lock",
)
"""The files that decide whether an environment is stale where it names none."""


type Name = Annotated[
    str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", min_length=1, max_length=100)
]
type Script = Annotated[str, matching(r"\A[^\0]*\Z", "without NUL", max_length=64 * 1024)]
type Watched = Annotated[
    str,
    matching(
        r"\A(?![:/])(?!(.*/)?\.\.(/|\Z))[^\0\r\n]*\Z",
        "a path in the repository, from its top",
        min_length=1,
        max_length=256,
    ),
]
type Variables = Annotated[
    dict[EnvName, Annotated[str, matching(r"\A[^\0]*\Z", "without NUL", max_length=4096)]],
    Meta(max_length=50),
]


type Image = Annotated[
    str, matching(r"\A[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z", "the name of an image", max_length=256)
]

AUTO: Final = "auto"
NONE: Final = "none"


class Status(StrEnum):
    """How far the preparing of an environment has come."""

    WAITING = "waiting"
    """It is to be prepared"""
    PREPARING = "preparing"
    """It is being prepared"""
    READY = "ready"
    """It is prepared"""
    FAILED = "failed"
    """It could not be prepared; what was prepared before stays in use"""

    @property
    def is_final(self) -> bool:
        """Whether nothing is being done."""
        return self in (Status.READY, Status.FAILED)


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What is prepared, and how."""

    name: Name
    """What it is called"""
    repository: SentRepository | None = None
    """Repository it is for: `owner/name`, or a URL; null: none, it is used where a start names it"""
    provider: Provider | None = None
    """Where the repository is; null: where the user has a token for and it is found"""
    sandbox_spec_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Sandbox spec it is prepared and used with; null: the default one"""
    image: Image | None = None
    """Image of the sandboxes, where their backend has images; null: that of `devcontainer`, else of
    the sandbox spec"""
    devcontainer: Watched = AUTO
    """The repository's `devcontainer.json`: `auto` takes the one there is at one of the usual places,
    `none` takes none, and anything else is its path"""
    setup_script: Script = ""
    """What bash runs in the workspace to prepare it; empty: `.agentsvc/setup.sh` or
    `.openhands/setup.sh` of the repository"""
    maintenance_script: Script = ""
    """What bash runs in the workspace at the start of each conversation; empty: nothing"""
    watched: Annotated[list[Watched], Meta(max_length=50)] | None = None
    """Files in the repository, by git's patterns, whose change makes it stale; null: the lock files
    of known package managers, the set-up scripts, and `.devcontainer`"""
    variables: Variables = {}
    """Environment variables of both scripts"""
    secrets: Annotated[list[EnvName], Meta(max_length=50)] = []
    """Names of stored secrets that the set-up script gets as environment variables. With any, it
    cannot be shared"""
    shared: bool = False
    """Whether others may name it in their starts; only administrators may share"""

    def is_of(self, repository: str, provider: Provider | None) -> bool:
        """Say whether it is of a repository, as far as names tell."""
        is_same_host = None in (provider, self.provider) or provider == self.provider
        return is_same_host and _plain(self.repository or "") == _plain(repository)

    def is_called(self, repository: str) -> bool:
        """Say whether that may be its repository, wherever it is."""
        return _path(self.repository or "") == _path(repository)

    @property
    def paths(self) -> tuple[str, ...]:
        """The patterns of the files that decide whether it is stale."""
        if self.repository is None:
            return ()
        return WATCHED if self.watched is None else tuple(self.watched)


def _plain(repository: str) -> str:
    return repository.rstrip("/").removesuffix(".git").lower()


def _path(repository: str) -> str:
    return _plain(repository).partition("://")[2].partition("/")[2] or _plain(repository)


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """What a `devcontainer.json`, or an image of its own, adds to an environment."""

    image: str = ""
    """In which sandboxes run; empty for that of their spec."""
    image_id: str = ""
    """That of one that was built for it; empty for none."""
    exports: str = ""
    """Lines of bash that set its variables."""
    set_up: str = ""
    """What bash runs after the set-up script; empty for nothing."""
    each_start: str = ""
    files: tuple[str, ...] = ()
    """What it was made from, of the repository."""
    note: str = ""
    """What it asks for that is left out, for people; empty for nothing."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """One environment as it is stored."""

    id: str
    user_id: str
    definition: Definition
    created_at: datetime
    updated_at: datetime
    status: Status = Status.WAITING
    attempt: str = ""
    """The preparing that may change it now; one that was superseded may not."""
    reason: str = ""
    """What is being done, or why it failed."""
    log: str = ""
    """The end of what the set-up script wrote."""
    sandbox_id: str | None = None
    """The sandbox in which it is being prepared."""
    layer_id: str = ""
    """The files that were prepared last; empty for none."""
    earlier_layer_id: str = ""
    """Those before, with which some may just be about to begin."""
    made_from: Definition | None = None
    """What they were prepared from; `definition` may have been changed since."""
    container: Container = Container()
    """What belongs to these files."""
    backend: str = ""
    spec_id: str = ""
    fingerprint: str = ""
    size_bytes: int = 0
    prepared_at: datetime | None = None
