"""Gives backends access to the settings of a sandbox's user."""

from agentsvc.base import Secret
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.settings import SettingsStore


async def find_owner_key(
    sandboxes: SandboxTable, settings: SettingsStore, sandbox_id: str
) -> Secret | None:
    """Return the owner's own key for the service that runs a sandbox, if they have one."""
    user_id = await sandboxes.find_owner(sandbox_id)
    found = await settings.find(user_id) if user_id else None
    return found.sandbox_api_key if found else None
