"""The stored form of prepared environments. Pure."""

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
"""The watched files of an environment that names none: a change of them makes it stale."""


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
    """The status of an environment's preparation."""

    WAITING = "waiting"
    """It waits to be prepared"""
    PREPARING = "preparing"
    """It is being prepared"""
    READY = "ready"
    """It is prepared"""
    FAILED = "failed"
    """It could not be prepared; files prepared earlier stay in use"""

    @property
    def is_final(self) -> bool:
        """Whether the preparation has ended."""
        return self in (Status.READY, Status.FAILED)


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of an environment: its repository, scripts and variables."""

    name: Name
    """Name of the environment"""
    repository: SentRepository | None = None
    """Its repository: `owner/name`, or a URL; null: none, it is used only by starts that name it"""
    provider: Provider | None = None
    """Git host of the repository; null: a host that the user has a token for and that has the repository"""
    sandbox_spec_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """Sandbox spec for its preparation and use; null: the default one"""
    image: Image | None = None
    """Image of the sandboxes, if their backend has images; null: the image of `devcontainer`, otherwise
    of the sandbox spec"""
    devcontainer: Watched = AUTO
    """The repository's `devcontainer.json`: `auto` searches the usual paths,
    `none` ignores the file, and anything else is its path"""
    setup_script: Script = ""
    """Bash script that prepares the workspace; empty: `.agentsvc/setup.sh` or
    `.openhands/setup.sh` of the repository"""
    maintenance_script: Script = ""
    """Bash script to run in the workspace at the start of each conversation; empty: none"""
    watched: Annotated[list[Watched], Meta(max_length=50)] | None = None
    """Files of the repository, as patterns of git, whose change makes it stale; null: the lock files
    of known package managers, the set-up scripts, and `.devcontainer`"""
    variables: Variables = {}
    """Environment variables of both scripts"""
    secrets: Annotated[list[EnvName], Meta(max_length=50)] = []
    """Names of stored secrets that the set-up script gets as environment variables. An environment with
    secrets cannot be shared"""
    shared: bool = False
    """Whether other users may start conversations with it; only administrators may share"""

    def is_of(self, repository: str, provider: Provider | None) -> bool:
        """Return whether it belongs to a repository, judging by names."""
        is_same_host = None in (provider, self.provider) or provider == self.provider
        return is_same_host and _plain(self.repository or "") == _plain(repository)

    def is_called(self, repository: str) -> bool:
        """Return whether a repository may be its own, regardless of the host."""
        return _path(self.repository or "") == _path(repository)

    @property
    def paths(self) -> tuple[str, ...]:
        """The patterns of the watched files."""
        if self.repository is None:
            return ()
        return WATCHED if self.watched is None else tuple(self.watched)


def _plain(repository: str) -> str:
    return repository.rstrip("/").removesuffix(".git").lower()


def _path(repository: str) -> str:
    return _plain(repository).partition("://")[2].partition("/")[2] or _plain(repository)


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """The additions to an environment by its `devcontainer.json` or its own image."""

    image: str = ""
    """Image of the sandboxes; empty for the one of their spec."""
    image_id: str = ""
    """Id of the image that was built for it; empty if none was."""
    exports: str = ""
    """Bash lines that set its variables."""
    set_up: str = ""
    """Bash lines to run after the set-up script; empty for none."""
    each_start: str = ""
    files: tuple[str, ...] = ()
    """Files of the repository from which it was made."""
    note: str = ""
    """Message about ignored properties; empty if there are none."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A stored environment."""

    id: str
    user_id: str
    definition: Definition
    created_at: datetime
    updated_at: datetime
    status: Status = Status.WAITING
    attempt: str = ""
    """Id of the current preparation; a superseded one must not change the row."""
    reason: str = ""
    """The current step, or why the preparation failed."""
    log: str = ""
    """The end of the set-up script's output."""
    sandbox_id: str | None = None
    """Id of the sandbox in which it is being prepared."""
    layer_id: str = ""
    """Id of the layer that was prepared last; empty if there is none."""
    earlier_layer_id: str = ""
    """Id of the layer before, with which some conversations may be about to start."""
    made_from: Definition | None = None
    """The definition from which the layer was prepared; `definition` may have changed since."""
    container: Container = Container()
    """The additions that belong to the layer."""
    backend: str = ""
    spec_id: str = ""
    fingerprint: str = ""
    size_bytes: int = 0
    prepared_at: datetime | None = None
