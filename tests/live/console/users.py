"""Users of the console."""

from typing import Any

from agentsvc.accounts.keys import KeyRing, KeyScope, Role
from agentsvc.base.values import new_id
from agentsvc.storage.database import Database
from tests.live.client import LiveClient
from tests.live.installation import Installation


async def new_user(
    shared: Installation, role: Role = Role.MEMBER, scope: KeyScope = KeyScope.ADMIN
) -> LiveClient:
    """Return a client of a user who has nothing so far."""
    database = await Database.open(shared.data.database)
    try:
        keys = KeyRing(database)
        user_id = await keys.create_user(f"browser-{new_id()}", role)
        _, key = await keys.create_key(user_id, "browser", scope=scope)
    finally:
        await database.close()
    client = LiveClient(shared.url, key.reveal(), shared.model)
    shared.keep(client)
    return client


async def usual_settings(client: LiveClient, **fields: Any) -> None:
    await client.save_settings(**fields)
    answer = await client.post("/api/v1/settings", json={"sandbox_grouping_strategy": "ADD_TO_ANY"})
    assert answer.status == 200, answer.text
