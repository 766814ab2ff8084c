"""The tables of sandboxes, and the listeners for changes of their rows."""

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
    """Bundle of all table objects of sandboxes."""

    def __init__(
        self, db: Database, vault: Vault, settings: SettingsStore, model_hosts: Iterable[str]
    ) -> None:
        self.db = db
        self.settings = settings
        """User settings: the models and git hosts that a user's sandboxes may reach."""
        self.model_hosts = model_hosts
        """Private hosts that may serve models; iterating yields the current ones."""
        self.sandboxes = SandboxTable(db, vault)
        self.uses = UseTable(db)
        """The queue for capacity, times of last use, and failed removals."""
        self.clients = ClientTable(db, vault)
        self.warm_pool = WarmPoolTable(db, vault)
        self.changes = ChangeListeners()
        """Notified of each change of a sandbox after its commit."""

    async def find_owner_key(self, sandbox_id: str) -> Secret | None:
        """Return the owner's API key for the service that runs the sandbox, if set."""
        user_id = await self.sandboxes.find_owner(sandbox_id)
        found = await self.settings.find(user_id) if user_id else None
        return found.sandbox_api_key if found else None

    async def announce(self, tx: Transaction, before: Sandbox) -> Sandbox | None:
        """Notify listeners after the commit; return the sandbox as the transaction changed it."""
        after = await self.sandboxes.find(before.id, tx)
        tx.after_commit(lambda: self.changes.announce(before, after))
        return after
