"""Private hosts where models may be: configured ones, and those that administrators add."""

from collections.abc import Iterator, Sequence

from agentsvc.base import NotFound, now, to_stored
from agentsvc.storage import Database, Transaction


class ModelHosts:
    """The allowed hosts, in the format of `sandboxes.model_hosts`; iteration reflects changes."""

    def __init__(self, db: Database, configured: Sequence[str]) -> None:
        self._db = db
        self.configured = tuple(configured)
        self.added: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[str]:
        return iter((*self.configured, *self.added))

    async def load(self) -> None:
        """Read the added hosts; called at the start and after each change."""
        rows = await self._db.all("SELECT host FROM model_hosts ORDER BY host")
        self.added = tuple(row["host"] for row in rows)

    async def add(self, host: str) -> None:
        """Allow a host with a validated name; idempotent."""

        async def body(tx: Transaction) -> None:
            row = {"host": host, "added_at": to_stored(now())}
            await tx.insert("model_hosts", row, "ON CONFLICT (host) DO NOTHING")

        await self._db.write(body)
        await self.load()

    async def remove(self, host: str) -> None:
        """Remove an added host; raises NotFound."""
        if host not in self.added:
            raise NotFound("No administrator has added this host")

        async def body(tx: Transaction) -> None:
            await tx.run("DELETE FROM model_hosts WHERE host = :host", {"host": host})

        await self._db.write(body)
        await self.load()
