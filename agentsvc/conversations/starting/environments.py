"""Prepared environments as starts see them: copies of files with which conversations begin.

Which there are is known to a plugin; without one there are none.
"""

from typing import Final, Protocol

import msgspec

from agentsvc.base import BadRequest, NotFound
from agentsvc.domain import Provider, StartOrder
from agentsvc.plugin import Spec
from agentsvc.storage import Queryable

NO_ENVIRONMENT: Final = "none"
"""What an order names that is to begin without one."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared environment, and what is done with a copy of it."""

    id: str
    name: str
    layer_id: str
    """Empty for one that was never prepared."""
    spec_id: str
    """The sandbox spec it was prepared with."""
    backend: str
    base: str
    """The image in which sandboxes run; empty for that of their spec."""
    repository: str | None
    """Whose set-up was done; None for none."""
    provider: Provider | None
    setup_script: str
    """Run again where the copy is stale."""
    maintenance_script: str
    """Run at each start."""
    watched: tuple[str, ...]
    """Paths in the repository; the copy is stale where their contents differ from the fingerprint."""
    fingerprint: str


class EnvironmentSource(Protocol):
    """What knows the environments of users."""

    async def get(self, user_id: str, order: StartOrder) -> Environment:
        """Return the one that an order names; raises NotFound, and BadRequest for another repository's."""
        ...

    async def find_for(
        self, reader: Queryable, user_id: str, order: StartOrder, spec: Spec
    ) -> Environment | None:
        """Return the one that an order begins with that names none, if there is one for it."""
        ...

    async def find_by_layer(self, layer_id: str) -> Environment | None:
        """Return the one that has a layer now, or had it before that."""
        ...

    def renew(self, environment: Environment) -> None:
        """Have it prepared anew, since it is stale."""
        ...


class Environments:
    """Says with which environment a start begins."""

    def __init__(self) -> None:
        self.source: EnvironmentSource | None = None

    async def check(self, user_id: str, order: StartOrder) -> StartOrder:
        """Return the order with the repository of the environment that it names, unless it has one.

        Raises NotFound for one that does not exist, BadRequest where it is of no use.
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
        """Return the environment that a new sandbox begins with, if any."""
        if is_named(order):
            return await self._get(user_id, order)
        is_other = order.archive_id or order.parent_conversation_id or order.commit or is_grouped
        if self.source is None or is_other or order.environment_id == NO_ENVIRONMENT:
            return None
        return await self.source.find_for(reader, user_id, order, spec)

    async def find_by_layer(self, layer_id: str) -> Environment | None:
        """Return the environment that has a layer now, or had it before that; None for others."""
        return await self.source.find_by_layer(layer_id) if self.source and layer_id else None

    def renew(self, environment: Environment) -> None:
        """Have a stale environment prepared anew, in the background."""
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
    """Whether an order names an environment."""
    return order.environment_id not in (None, NO_ENVIRONMENT)
