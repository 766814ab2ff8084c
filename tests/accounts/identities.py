"""Whose key a key is, asked of a data directory that no server uses."""

import asyncio
from pathlib import Path

from agentsvc.accounts.keys import KeyRing, Principal
from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.database import Database


def identify(data_dir: Path, key: str) -> Principal:
    """Return who shows this key; raises NotAuthenticated."""

    async def opened() -> Principal:
        database = await Database.open(DataDirectory(path=data_dir).database)
        try:
            return await KeyRing(database).identify(key)
        finally:
            await database.close()

    return asyncio.run(opened())
