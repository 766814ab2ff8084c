"""Prepared environments, as starts see them: copies of files with which conversations begin.

A plugin is the source of environments; without one there are none.
"""

from typing import Final, Protocol

import msgspec

from agentsvc.base import BadRequest, NotFound
from agentsvc.domain import Provider, StartOrder
from agentsvc.plugin import Spec
from agentsvc.storage import Queryable

NO_ENVIRONMENT: Final = "none"
"""The `environment_id` of an order that is to begin without an environment."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared environment, and the scripts to run in a copy of it."""

    id: str
    name: str
    layer_id: str
    """Empty if the environment was never prepared."""
    spec_id: str
    """The sandbox spec with which it was prepared."""
    backend: str
    base: str
    """The image of its sandboxes; empty for the image of the spec."""
    repository: str | None
    """The repository whose set-up script was run; None without a repository."""
    provider: Provider | None
    setup_script: str
    """Run again if the copy is stale."""
    maintenance_script: str
    """Run at each start."""
    watched: tuple[str, ...]
    """Paths in the repository; the copy is stale if their contents differ from the fingerprint."""
    fingerprint: str


class EnvironmentSource(Protocol):
    """A source of the environments of users, implemented by a plugin."""

    async def get(self, user_id: str, order: StartOrder) -> Environment:
        """Return the environment that an order names.

        Raises NotFound, and BadRequest if it belongs to another repository.
        """
        ...

    async def find_for(
        self, reader: Queryable, user_id: str, order: StartOrder, spec: Spec
    ) -> Environment | None:
        """Return the environment that matches an order which names none, or None."""
        ...

    async def find_by_layer(self, layer_id: str) -> Environment | None:
        """Return the environment with this layer as its present or an earlier one, or None."""
        ...

    def renew(self, environment: Environment) -> None:
        """Schedule a new preparation of a stale environment."""
        ...


class Environments:
    """Chooses the environment with which a start begins."""

    def __init__(self) -> None:
        self.source: EnvironmentSource | None = None

    async def check(self, user_id: str, order: StartOrder) -> StartOrder:
        """Return the order with the repository of the environment it names, unless it has its own.

        Raises NotFound if the environment does not exist, and BadRequest if it is not prepared yet,
        belongs to another repository, or the order brings other files.
        """
        if not is_named(order):
            return order
        if order.sandbox_id or order.archive_id or order.parent_conversation_id or order.commit:
            raise BadRequest("An environment is copied into a new sandbox, without other files")
        found = await self._get(user_id, order)
        if order.repository is not None:
            return order
        return msgspec.structs.replace(order, repository=found.repository, provider=found.provider)

    async def choose(
        self, reader: Queryable, user_id: str, order: StartOrder, spec: Spec, *, is_grouped: bool
    ) -> Environment | None:
        """Return the environment that a new sandbox begins with, or None."""
        if is_named(order):
            return await self._get(user_id, order)
        is_other = order.archive_id or order.parent_conversation_id or order.commit or is_grouped
        if self.source is None or is_other or order.environment_id == NO_ENVIRONMENT:
            return None
        return await self.source.find_for(reader, user_id, order, spec)

    async def find_by_layer(self, layer_id: str) -> Environment | None:
        """Return the environment whose present or earlier layer this is, or None."""
        return await self.source.find_by_layer(layer_id) if self.source and layer_id else None

    def renew(self, environment: Environment) -> None:
        """Schedule a new preparation of a stale environment, in the background."""
        if self.source is not None:
            self.source.renew(environment)

    async def _get(self, user_id: str, order: StartOrder) -> Environment:
        if self.source is None:
            raise NotFound("Environment not found")
        found = await self.source.get(user_id, order)
        if not found.layer_id:
            raise BadRequest(f"The environment `{found.name}` is not prepared yet")
        return found


def is_named(order: StartOrder) -> bool:
    """Return whether an order names an environment."""
    return order.environment_id not in (None, NO_ENVIRONMENT)
