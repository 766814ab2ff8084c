"""What the routes of environments read and answer."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import stored_or_none, to_stored
from agentsvc.extension.conversations import Provider, SentRepository
from agentsvc.extension.web import Time

from .model import (
    Definition,
    Environment,
    Image,
    Name,
    Script,
    SecretNames,
    Status,
    Variables,
    Watched,
)


class EnvironmentUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of an environment, which is prepared anew; what is not sent stays."""

    name: Name | UnsetType = UNSET
    """What it is called; left out: unchanged"""
    repository: SentRepository | UnsetType | None = UNSET
    """Repository it is for; null: none, left out: unchanged"""
    provider: Provider | UnsetType | None = UNSET
    """Where the repository is; null: where it is found, left out: unchanged"""
    sandbox_spec_id: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType | None = UNSET
    """Sandbox spec it is prepared and used with; null: the default one, left out: unchanged"""
    image: Image | UnsetType | None = UNSET
    """Image of the sandboxes; null: the usual one, left out: unchanged"""
    devcontainer: Watched | UnsetType = UNSET
    """`auto`, `none` or the path of the repository's `devcontainer.json`; left out: unchanged"""
    setup_script: Script | UnsetType = UNSET
    """What bash runs to prepare it; left out: unchanged"""
    maintenance_script: Script | UnsetType = UNSET
    """What bash runs at the start of each conversation; left out: unchanged"""
    watched: Annotated[list[Watched], Meta(max_length=50)] | UnsetType | None = UNSET
    """Files whose change makes it stale; null: the usual ones, left out: unchanged"""
    variables: Variables | UnsetType = UNSET
    """Environment variables of both scripts; left out: unchanged"""
    secrets: SecretNames | UnsetType = UNSET
    """Names of stored secrets that the set-up script gets; left out: unchanged"""
    shared: bool | UnsetType = UNSET
    """Whether others may name it in their starts; left out: unchanged"""

    def changes(self) -> dict[str, object]:
        """Return what was sent."""
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not UNSET}


class EnvironmentInfo(Definition, frozen=True, kw_only=True):
    """An environment, and how far its preparing has come."""

    id: str
    """Id of the environment, 32 hex digits; `environment_id` of a start takes it"""
    status: Status
    """How far the preparing has come; `failed` keeps what was prepared before"""
    detail: str | None
    """What is being done, or why it could not be prepared; null: nothing to say"""
    is_prepared: bool
    """Whether there are prepared files, with which conversations begin"""
    size_bytes: int
    """Bytes of disk that the prepared files take; 0 for none"""
    prepared_at: Time | None
    """When they were prepared, in UTC; null: never"""
    created_at: Time
    updated_at: Time


class EnvironmentDetails(EnvironmentInfo, frozen=True, kw_only=True):
    """An environment with what its set-up script wrote last."""

    log: str
    """The end of what the set-up script wrote, at most 20,000 characters"""


class EnvironmentList(msgspec.Struct, frozen=True, kw_only=True):
    """The environments of a user, which are few."""

    items: list[EnvironmentInfo]
    """All of them, the newest first"""


def to_info(one: Environment) -> EnvironmentInfo:
    """Return an environment as its owner sees it in a list."""
    return EnvironmentInfo(**_shown(one))


def to_details(one: Environment) -> EnvironmentDetails:
    """Return an environment as its owner sees it."""
    return EnvironmentDetails(**_shown(one), log=one.log)


def _shown(one: Environment) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(one.definition),
        "id": one.id,
        "status": one.status,
        "detail": one.reason or None,
        "is_prepared": bool(one.layer_id),
        "size_bytes": one.size_bytes,
        "prepared_at": stored_or_none(one.prepared_at),
        "created_at": to_stored(one.created_at),
        "updated_at": to_stored(one.updated_at),
    }
