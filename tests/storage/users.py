"""Users that tests write into a database, and queries that tests read it by."""

from collections.abc import Awaitable, Callable

from agentsvc.storage.database import Database, Transaction

INSERT = """
    INSERT INTO users (id, name, role, created_at)
    VALUES (:id, :name, 'admin', '2025-01-01T00:00:00.000000Z')
"""
COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :to) SELECT count(*) FROM n"
LONG = {"to": 2_000_000}


def adding(*ids: str) -> Callable[[Transaction], Awaitable[None]]:
    """Return a body that adds users of these ids, one statement each."""

    async def body(tx: Transaction) -> None:
        for user_id in ids:
            await tx.run(INSERT, {"id": user_id, "name": f"name of {user_id}"})

    return body


async def user_ids(db: Database) -> list[str]:
    return [row["id"] for row in await db.all("SELECT id FROM users ORDER BY id")]
