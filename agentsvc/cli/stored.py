"""Direct access to a data directory for commands that need no running server."""

import asyncio
from collections.abc import Awaitable, Callable

from agentsvc.accounts import note_command
from agentsvc.config import DataDirectory
from agentsvc.storage import Database


def run_on[T](
    data_directory: DataDirectory,
    body: Callable[[Database], Awaitable[T]],
    *,
    noted: tuple[str, str] | None = None,
) -> T:
    """Run `body` on the database and return its result; `noted` is added to the audit log."""

    async def opened() -> T:
        database = await Database.open(data_directory.database)
        try:
            result = await body(database)
            if noted is not None:
                await note_command(database, *noted)
            return result
        finally:
            await database.close()

    return asyncio.run(opened())
