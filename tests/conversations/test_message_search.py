"""Searches of messages: they look through so much only."""

import msgspec

from agentsvc.conversations import find_messages
from agentsvc.http.keys import DATABASE
from agentsvc.storage import Transaction
from tests.service import Client, Service

_ADD = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
    INSERT INTO events (conversation_id, seq, id, kind, timestamp, source, body, received_at)
    SELECT :conversation_id, :after + n, 'id-' || (:after + n), 'MessageEvent', '2026-01-01T00:00:00', 'user',
        CAST(:body AS BLOB), '2026-01-01T00:00:00'
    FROM number
"""


def _message(text: str) -> str:
    return msgspec.json.encode({"llm_message": {"content": [{"text": text}]}}).decode()


async def test_words_beyond_so_many_megabytes_are_not_looked_for(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation("Begin")
    await client.wait_for_execution(conversation_id, "finished")
    db = service.app[DATABASE]
    row = await db.one("SELECT user_id FROM conversations WHERE id = :id", {"id": conversation_id})
    assert row is not None

    async def add(tx: Transaction) -> None:
        params = {"conversation_id": conversation_id}
        large, near, far = map(_message, ("x" * 60_000, "a word nearby", "a word far away"))
        for after, count, body in (
            (1000, 100, large),
            (2000, 1, near),
            (3000, 500, large),
            (4000, 1, far),
        ):
            await tx.run(_ADD, {**params, "after": after, "count": count, "body": body})

    await db.write(add)
    [found] = await find_messages(db, row["user_id"], "a word", limit=10)
    assert found.excerpt == "a word nearby"
