"""Operations of users on environments, and the selection of one for a start."""

from collections.abc import Callable

import msgspec

from agentsvc.base import (
    BadRequest,
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    new_id,
    now,
)
from agentsvc.extension.conversations import StartOrder, check_repository, refuse_credentials
from agentsvc.extension.environments import Environment as Prepared
from agentsvc.extension.environments import Spec
from agentsvc.extension.server import Server
from agentsvc.extension.storage import Queryable, Transaction, note_effect

from .config import EnvironmentsConfig
from .model import Definition, Environment, Status
from .scripts import maintenance_of, setup_of
from .table import EnvironmentTable


class EnvironmentService:
    """Manages environments; `wake` starts the waiting preparations."""

    def __init__(
        self, server: Server, config: EnvironmentsConfig, wake: Callable[[], None]
    ) -> None:
        self._db = server.database
        self._sandboxes = server.sandboxes
        self._supervisor = server.supervisor
        self._config = config
        self._wake = wake

    async def list_of(self, user_id: str) -> list[Environment]:
        """Return the environments of a user, the newest first."""
        return await EnvironmentTable.of_user(self._db, user_id)

    async def get_own(
        self, user_id: str, environment_id: str, reader: Queryable | None = None
    ) -> Environment:
        """Return an environment of a user; raises NotFound."""
        found = await EnvironmentTable.find(reader or self._db, environment_id)
        if found is None or found.user_id != user_id:
            raise NotFound("Environment not found")
        return found

    async def create(self, user_id: str, definition: Definition, *, is_admin: bool) -> Environment:
        """Store an environment, which is prepared in the background.

        Raises InvalidRequest, NotFound, NotAllowed and Conflict if it cannot be prepared,
        and QuotaExceeded if the user has too many.
        """
        self._check(definition, is_admin=is_admin)
        made = Environment(
            id=new_id(),
            user_id=user_id,
            definition=definition,
            attempt=new_id(),
            created_at=now(),
            updated_at=now(),
        )

        async def body(tx: Transaction) -> None:
            if len(await EnvironmentTable.of_user(tx, user_id)) >= self._config.max_per_user:
                raise QuotaExceeded(f"A user has at most {self._config.max_per_user} environments")
            await EnvironmentTable.insert(tx, made)
            await note_effect(tx, made)
            tx.after_commit(self._wake)

        await self._db.write(body)
        return made

    async def update(
        self, user_id: str, environment_id: str, changes: dict[str, object], *, is_admin: bool
    ) -> Environment:
        """Change some fields of an environment and prepare it again; raises as `create`."""

        async def body(tx: Transaction) -> Environment:
            found = await self.get_own(user_id, environment_id, tx)
            changed = msgspec.structs.replace(found.definition, **changes)
            self._check(changed, is_admin=is_admin)
            return await self._begin(tx, msgspec.structs.replace(found, definition=changed))

        return await self._db.write(body)

    async def prepare(self, user_id: str, environment_id: str) -> Environment:
        """Prepare an environment again; raises NotFound."""

        async def body(tx: Transaction) -> Environment:
            return await self._begin(tx, await self.get_own(user_id, environment_id, tx))

        return await self._db.write(body)

    async def delete(self, user_id: str, environment_id: str) -> None:
        """Delete an environment; its files are removed later, its conversations stay."""

        async def body(tx: Transaction) -> None:
            found = await self.get_own(user_id, environment_id, tx)
            await EnvironmentTable.delete(tx, environment_id)
            if found.sandbox_id:
                await self._sandboxes.release(tx, found.sandbox_id)
            tx.after_commit(self._wake)

        await self._db.write(body)

    # Source of environments for starts

    async def get(self, user_id: str, order: StartOrder) -> Prepared:
        """Return the environment that a start names: the user's own, or a shared one.

        Raises NotFound, and BadRequest for an order with another repository.
        """
        found = await EnvironmentTable.find(self._db, order.environment_id or "")
        if found is None or not (found.user_id == user_id or found.definition.shared):
            raise NotFound("Environment not found")
        if found.user_id != user_id and found.made_from is not None and found.made_from.secrets:
            # The definition has no secrets any more, but the layer was prepared with secrets.
            found = msgspec.structs.replace(found, layer_id="")
        made_from = found.made_from or found.definition
        repository = made_from.repository
        if repository and order.repository and not made_from.is_called(order.repository):
            raise BadRequest(
                f"The environment `{found.definition.name}` is for the repository `{repository}`"
            )
        return _prepared(found)

    async def find_for(
        self, reader: Queryable, user_id: str, order: StartOrder, spec: Spec
    ) -> Prepared | None:
        """Return the user's environment for the repository and the sandbox spec, if prepared."""
        if order.repository is None:
            return None
        for one in await EnvironmentTable.of_user(reader, user_id):
            made_from = one.made_from if one.spec_id == spec.id and one.layer_id else None
            if made_from is not None and made_from.is_of(order.repository, order.provider):
                return _prepared(one)
        return None

    async def find_by_layer(self, layer_id: str) -> Prepared | None:
        """Return the environment that has a layer now, or had it before that."""
        found = await EnvironmentTable.find_by_layer(self._db, layer_id)
        return _prepared(found) if found else None

    def renew(self, environment: Prepared) -> None:
        """Prepare a stale environment again, in the background."""

        async def body(tx: Transaction) -> None:
            found = await EnvironmentTable.find(tx, environment.id)
            if found is not None and found.status.is_final:
                await self._begin(tx, found)

        name = f"stale environment {environment.id}"
        self._supervisor.spawn(name, lambda: self._db.write(body))

    async def _begin(self, tx: Transaction, one: Environment) -> Environment:
        """Reset an environment to be prepared again; a preparation in progress is superseded."""
        begun = msgspec.structs.replace(
            one,
            status=Status.WAITING,
            attempt=new_id(),
            reason="",
            sandbox_id=None,
            updated_at=now(),
        )
        await EnvironmentTable.change(tx, begun, since=one.attempt)
        if one.sandbox_id:
            await self._sandboxes.release(tx, one.sandbox_id)
        await note_effect(tx, begun)
        tx.after_commit(self._wake)
        return begun

    def _check(self, definition: Definition, *, is_admin: bool) -> None:
        if definition.repository is not None:
            place = ("body", "repository")
            refuse_credentials(definition.repository, loc=place)
            if "://" not in definition.repository:
                check_repository(definition.repository, definition.provider, loc=place)
        if definition.shared and not is_admin:
            raise NotAllowed("Only administrators may share environments")
        if definition.shared and definition.secrets:
            raise InvalidRequest(
                "An environment with secrets cannot be shared", loc=("body", "secrets")
            )
        spec = self._sandboxes.get_spec(definition.sandbox_spec_id)
        if why_not := self._sandboxes.layers.why_not_kept(spec):
            raise Conflict(
                f"The backend of the sandbox spec `{spec.id}` cannot keep prepared files: {why_not}"
            )
        if definition.image is not None and not self._sandboxes.images.can_use(spec):
            raise Conflict(f"The backend of the sandbox spec `{spec.id}` has no images")


def _prepared(one: Environment) -> Prepared:
    made_from = one.made_from or one.definition
    return Prepared(
        id=one.id,
        name=one.definition.name,
        layer_id=one.layer_id,
        spec_id=one.spec_id,
        backend=one.backend,
        base=one.container.image,
        repository=made_from.repository,
        provider=made_from.provider,
        setup_script=setup_of(made_from, one.container),
        maintenance_script=maintenance_of(made_from, one.container),
        watched=(*made_from.paths, *one.container.files),
        fingerprint=one.fingerprint,
    )
