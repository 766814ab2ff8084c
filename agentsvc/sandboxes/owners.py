"""Gives backends access to the settings of a sandbox's user."""

from agentsvc.base import Secret
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.settings import SettingsStore
from agentsvc.storage import Database, Vault


class Owners:
    """Finds the users of sandboxes."""

    def __init__(self, db: Database, vault: Vault, settings: SettingsStore) -> None:
        self._table = SandboxTable(db, vault)
        self._settings = settings

    async def find_key(self, sandbox_id: str) -> Secret | None:
        """Return the owner's own key for the service that runs a sandbox, if they have one."""
        user_id = await self._table.find_owner(sandbox_id)
        settings = await self._settings.find(user_id) if user_id else None
        return settings.sandbox_api_key if settings else None
