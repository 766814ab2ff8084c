-- Where users want to be told of events and changes, and what is still to be told. The triggers
-- note what is to be told in the transaction that makes it true, so nothing that is stored is missed.
CREATE TABLE webhook_subscriptions (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    url TEXT NOT NULL,
    description TEXT NOT NULL,
    -- A JSON array; NULL stands for every kind.
    event_kinds TEXT,
    changes TEXT NOT NULL,
    is_enabled INTEGER NOT NULL,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE INDEX webhook_subscriptions_by_user ON webhook_subscriptions (user_id, created_at, id);

CREATE TABLE webhook_deliveries (
    number INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL UNIQUE DEFAULT (lower(hex(randomblob(16)))),
    subscription_id TEXT NOT NULL REFERENCES webhook_subscriptions (id) ON DELETE CASCADE,
    -- What is told in order: the id of a conversation, or of a sandbox.
    lane TEXT NOT NULL,
    type TEXT NOT NULL,
    -- The number of the event, whose body is in the log of the conversation.
    seq INTEGER,
    -- What a change says, in JSON.
    data TEXT,
    state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    status INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    -- When its time to be delivered began: as it was made, or replayed.
    begun_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    due_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    settled_at TEXT
) STRICT;

CREATE INDEX webhook_deliveries_by_subscription ON webhook_deliveries (subscription_id, number);

CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (subscription_id, lane, number)
WHERE state = 'pending';

CREATE INDEX webhook_deliveries_settled ON webhook_deliveries (settled_at)
WHERE settled_at IS NOT NULL;

CREATE TRIGGER webhooks_after_event AFTER INSERT ON events
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, seq)
    SELECT s.id, NEW.conversation_id, 'conversation.event', NEW.seq
    FROM conversations AS c
    JOIN webhook_subscriptions AS s ON s.user_id = c.user_id
    WHERE c.id = NEW.conversation_id
      AND s.is_enabled
      AND (s.event_kinds IS NULL OR NEW.kind IN (SELECT value FROM json_each(s.event_kinds)));
END;

CREATE TRIGGER webhooks_after_conversation_insert AFTER INSERT ON conversations
WHEN NEW.ready_at IS NOT NULL AND EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.id, 'conversation.changed', json_object(
        'id', NEW.id,
        'title', NEW.title,
        'sandbox_id', NEW.sandbox_id,
        'execution_status', NEW.execution_status
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'conversation' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_conversation_update AFTER UPDATE ON conversations
WHEN NEW.ready_at IS NOT NULL
    AND (
        OLD.ready_at IS NULL
        OR NEW.title IS NOT OLD.title
        OR NEW.sandbox_id IS NOT OLD.sandbox_id
        OR NEW.execution_status IS NOT OLD.execution_status
        OR NEW.selected_repository IS NOT OLD.selected_repository
        OR NEW.selected_branch IS NOT OLD.selected_branch
        OR NEW.llm_model IS NOT OLD.llm_model
        OR NEW.is_public IS NOT OLD.is_public
        OR NEW.tags IS NOT OLD.tags
    )
    AND EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.id, 'conversation.changed', json_object(
        'id', NEW.id,
        'title', NEW.title,
        'sandbox_id', NEW.sandbox_id,
        'execution_status', NEW.execution_status
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'conversation' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_conversation_delete AFTER DELETE ON conversations
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, OLD.id, 'conversation.deleted', json_object('id', OLD.id)
    FROM webhook_subscriptions AS s
    WHERE s.user_id = OLD.user_id
      AND s.is_enabled
      AND 'conversation' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_start_task_insert AFTER INSERT ON start_tasks
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.conversation_id, 'start_task.changed', json_object(
        'id', NEW.id,
        'conversation_id', NEW.conversation_id,
        'sandbox_id', NEW.sandbox_id,
        'status', NEW.status,
        'detail', NEW.detail
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'start_task' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_start_task_update AFTER UPDATE ON start_tasks
WHEN (NEW.status IS NOT OLD.status OR NEW.detail IS NOT OLD.detail)
    AND EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.conversation_id, 'start_task.changed', json_object(
        'id', NEW.id,
        'conversation_id', NEW.conversation_id,
        'sandbox_id', NEW.sandbox_id,
        'status', NEW.status,
        'detail', NEW.detail
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'start_task' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_start_task_delete AFTER DELETE ON start_tasks
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, OLD.conversation_id, 'start_task.deleted', json_object(
        'id', OLD.id, 'conversation_id', OLD.conversation_id
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = OLD.user_id
      AND s.is_enabled
      AND 'start_task' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_sandbox_insert AFTER INSERT ON sandboxes
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.id, 'sandbox.changed', json_object(
        'id', NEW.id, 'target', NEW.target, 'phase', NEW.phase, 'reason', NEW.reason
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'sandbox' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_sandbox_update AFTER UPDATE ON sandboxes
WHEN (NEW.target IS NOT OLD.target OR NEW.phase IS NOT OLD.phase)
    AND EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, NEW.id, 'sandbox.changed', json_object(
        'id', NEW.id, 'target', NEW.target, 'phase', NEW.phase, 'reason', NEW.reason
    )
    FROM webhook_subscriptions AS s
    WHERE s.user_id = NEW.user_id
      AND s.is_enabled
      AND 'sandbox' IN (SELECT value FROM json_each(s.changes));
END;

CREATE TRIGGER webhooks_after_sandbox_delete AFTER DELETE ON sandboxes
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, data)
    SELECT s.id, OLD.id, 'sandbox.deleted', json_object('id', OLD.id)
    FROM webhook_subscriptions AS s
    WHERE s.user_id = OLD.user_id
      AND s.is_enabled
      AND 'sandbox' IN (SELECT value FROM json_each(s.changes));
END;
