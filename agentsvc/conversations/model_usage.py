"""Token usage and cost of conversations, as counted by the model proxy.

The estimate of a call is stored before the call, and deleted when its usage is counted, so that
calls that a crash of the server interrupts are counted as well.
"""

from agentsvc.accounts import quotas
from agentsvc.conversations.model import Conversation
from agentsvc.models import CallUsage
from agentsvc.storage import Queryable, Row, Transaction, record_of, row_of


async def find_usage(reader: Queryable, conversation_id: str) -> CallUsage:
    """Return the usage of a conversation so far, as counted by the model proxy; may be zero."""
    sql = """
        SELECT prompt_tokens, completion_tokens, dollars
        FROM model_usage
        WHERE conversation_id = :conversation_id
    """
    row = await reader.one(sql, {"conversation_id": conversation_id})
    return record_of(row, CallUsage) if row else CallUsage(dollars=0.0)


def used_of(conversation: Conversation, counted: CallUsage) -> CallUsage:
    """Return a conversation's usage: the larger of the agent's report and the proxy's count."""
    metrics = conversation.metrics
    tokens = metrics.accumulated_token_usage if metrics else None
    return CallUsage(
        prompt_tokens=max(tokens.prompt_tokens if tokens else 0, counted.prompt_tokens),
        completion_tokens=max(tokens.completion_tokens if tokens else 0, counted.completion_tokens),
        dollars=max(metrics.accumulated_cost if metrics else 0.0, counted.dollars or 0.0),
    )


async def note_use(
    tx: Transaction, conversation: Conversation, before: CallUsage, after: CallUsage
) -> str:
    """Add the difference of two usages to the user's spend; return why no more may be spent, or "".

    A restarted agent server may count from zero again, so negative differences count as zero.
    """
    dollars = max(0.0, (after.dollars or 0.0) - (before.dollars or 0.0))
    used = quotas.Tokens(
        model=conversation.llm_model or "",
        prompt_tokens=max(0, after.prompt_tokens - before.prompt_tokens),
        completion_tokens=max(0, after.completion_tokens - before.completion_tokens),
    )
    if not (dollars or used.prompt_tokens or used.completion_tokens):
        return ""
    return await quotas.note_spend(tx, conversation.user_id, dollars, used)


async def add_usage(tx: Transaction, conversation_id: str, usage: CallUsage) -> None:
    """Add the usage of one call to an existing conversation."""
    sql = """
        INSERT INTO model_usage
            (conversation_id, calls, prompt_tokens, completion_tokens, dollars, largest)
        VALUES (:conversation_id, 1, :prompt_tokens, :completion_tokens, :dollars, :dollars)
        ON CONFLICT (conversation_id) DO UPDATE
        SET calls = calls + 1,
            prompt_tokens = prompt_tokens + excluded.prompt_tokens,
            completion_tokens = completion_tokens + excluded.completion_tokens,
            dollars = dollars + excluded.dollars,
            largest = MAX(largest, excluded.largest)
    """
    await tx.run(sql, row_of(usage, conversation_id=conversation_id, dollars=usage.dollars or 0.0))


async def note_call(tx: Transaction, call_id: str, conversation_id: str, guess: CallUsage) -> None:
    """Store the estimate of a call before it: the cost of the dearest call so far, if known.

    No-op if the conversation is gone.
    """
    sql = """
        INSERT INTO model_calls (id, conversation_id, prompt_tokens, dollars)
        SELECT :id, c.id, :prompt_tokens, COALESCE(NULLIF(u.largest, 0), :dollars)
        FROM conversations AS c
        LEFT JOIN model_usage AS u ON u.conversation_id = c.id
        WHERE c.id = :conversation_id
    """
    ids = {"id": call_id, "conversation_id": conversation_id}
    await tx.run(sql, row_of(guess, **ids, dollars=guess.dollars or 0.0))


async def forget_call(tx: Transaction, call_id: str) -> CallUsage | None:
    """Delete and return the estimate of a finished call; None if it was deleted before."""
    sql = "DELETE FROM model_calls WHERE id = :id RETURNING prompt_tokens, dollars"
    row = await tx.one(sql, {"id": call_id})
    return record_of(row, CallUsage, completion_tokens=0) if row else None


async def open_calls(reader: Queryable) -> list[Row]:
    """Return `id` and `conversation_id` of the calls whose usage is not counted."""
    return await reader.all("SELECT id, conversation_id FROM model_calls ORDER BY rowid")
