"""What conversations have used of their models through this server, by the models' own counts."""

from agentsvc.db import Queryable, Transaction
from agentsvc.modelwire import Usage


async def find_usage(reader: Queryable, conversation_id: str) -> Usage:
    """Return what a conversation has used so far; nothing for one that was never counted."""
    sql = """
        SELECT prompt_tokens, completion_tokens, dollars
        FROM model_usage
        WHERE conversation_id = :conversation_id
    """
    row = await reader.one(sql, {"conversation_id": conversation_id})
    if row is None:
        return Usage(dollars=0.0)
    return Usage(
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        dollars=row["dollars"],
    )


async def add_usage(tx: Transaction, conversation_id: str, usage: Usage) -> None:
    """Add what one call of a conversation, which exists, has used."""
    sql = """
        INSERT INTO model_usage (conversation_id, calls, prompt_tokens, completion_tokens, dollars)
        VALUES (:conversation_id, 1, :prompt_tokens, :completion_tokens, :dollars)
        ON CONFLICT (conversation_id) DO UPDATE
        SET calls = calls + 1,
            prompt_tokens = prompt_tokens + excluded.prompt_tokens,
            completion_tokens = completion_tokens + excluded.completion_tokens,
            dollars = dollars + excluded.dollars
    """
    await tx.run(
        sql,
        {
            "conversation_id": conversation_id,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "dollars": usage.dollars or 0.0,
        },
    )
