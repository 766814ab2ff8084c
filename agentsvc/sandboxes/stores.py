"""The tables of sandboxes, made together, and who hears of their changes."""

from collections.abc import Iterable

from agentsvc.base import Secret
from agentsvc.sandboxes.admission.table import UseTable
from agentsvc.sandboxes.admission.warm_pool_table import WarmPoolTable
from agentsvc.sandboxes.change_listeners import ChangeListeners
from agentsvc.sandboxes.runtime_clients import ClientTable
from agentsvc.sandboxes.state import Sandbox
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.settings import SettingsStore
from agentsvc.storage import Database, Transaction, Vault


class SandboxStores:
    """What is stored of sandboxes, table by table."""

    def __init__(
        self, db: Database, vault: Vault, settings: SettingsStore, model_hosts: Iterable[str]
    ) -> None:
        self.db = db
        self.settings = settings
        """Which models and git hosts sandboxes of a user are to reach."""
        self.model_hosts = model_hosts
        """Hosts that are not public and at which models may be, as they are when this is iterated."""
        self.sandboxes = SandboxTable(db, vault)
        self.uses = UseTable(db)
        """Who waits for room, who was used when, whose removal failed."""
        self.clients = ClientTable(db, vault)
        self.warm_pool = WarmPoolTable(db, vault)
        self.changes = ChangeListeners()
        """Told of each change of a sandbox once it is stored."""

    async def find_owner_key(self, sandbox_id: str) -> Secret | None:
        """Return the owner's own key for the service that runs a sandbox, if they have one."""
        user_id = await self.sandboxes.find_owner(sandbox_id)
        found = await self.settings.find(user_id) if user_id else None
        return found.sandbox_api_key if found else None

    async def announce(self, tx: Transaction, before: Sandbox) -> Sandbox | None:
        """Tell of what a transaction has changed of a sandbox, once that is durable; return it."""
        after = await self.sandboxes.find(before.id, tx)
        tx.after_commit(lambda: self.changes.announce(before, after))
        return after
