-- Generated from the migrations by agentsvc.storage.database_file.write_schema; do not edit.

CREATE TABLE users (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL
, role TEXT NOT NULL DEFAULT 'member'
    CHECK (role IN ('admin', 'member', 'viewer')), blocked_at TEXT, leaving_at TEXT) STRICT;

CREATE TABLE api_keys (
    id INTEGER PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT,
    revoked_at TEXT
, not_before TEXT, expires_at TEXT, scope TEXT NOT NULL DEFAULT 'admin'
    CHECK (scope IN ('read', 'run', 'admin', 'service')), made_with INTEGER REFERENCES api_keys (id) ON DELETE CASCADE) STRICT;

CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE settings (
    user_id TEXT NOT NULL PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    sealed BLOB NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE TABLE secrets (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('custom', 'provider')),
    name TEXT NOT NULL,
    sealed BLOB NOT NULL,
    description TEXT,
    host TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (user_id, kind, name)
) STRICT;

CREATE TABLE sandboxes (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    spec_id TEXT NOT NULL,
    spec BLOB NOT NULL,
    backend TEXT NOT NULL,
    target TEXT NOT NULL,
    phase TEXT,
    reason TEXT NOT NULL DEFAULT '',
    exit_code INTEGER,
    handle BLOB,
    endpoints BLOB NOT NULL,
    working_dir TEXT NOT NULL DEFAULT '',
    facts BLOB NOT NULL,
    session_key_hash TEXT NOT NULL UNIQUE,
    session_key_sealed BLOB NOT NULL,
    ready_by TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
, isolation TEXT, paused_as TEXT, cause TEXT, enforced BLOB NOT NULL DEFAULT x'5b5d') STRICT;

CREATE INDEX sandboxes_by_user ON sandboxes (user_id, created_at, id);

CREATE INDEX sandboxes_by_backend ON sandboxes (backend);

CREATE TABLE conversations (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    alias TEXT,
    sandbox_id TEXT,
    title TEXT,
    title_source TEXT NOT NULL CHECK (title_source IN ('default', 'agent', 'user')),
    selected_repository TEXT,
    selected_branch TEXT,
    git_provider TEXT,
    trigger TEXT,
    pr_number BLOB NOT NULL,
    llm_model TEXT,
    agent_kind TEXT NOT NULL,
    metrics BLOB,
    facts BLOB NOT NULL,
    parent_id TEXT,
    is_public INTEGER,
    tags BLOB NOT NULL,
    working_dir TEXT NOT NULL DEFAULT '',
    execution_status TEXT,
    max_budget REAL,
    next_seq INTEGER NOT NULL DEFAULT 0,
    ready_at TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (user_id, alias)
) STRICT;

CREATE INDEX conversations_by_created ON conversations (user_id, created_at, id);

CREATE INDEX conversations_by_updated ON conversations (user_id, updated_at, id);

CREATE INDEX conversations_by_title ON conversations (user_id, coalesce(title, ''), id);

CREATE INDEX conversations_by_sandbox ON conversations (sandbox_id);

CREATE INDEX conversations_by_parent ON conversations (parent_id);

CREATE TABLE start_tasks (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    conversation_id TEXT NOT NULL,
    status TEXT NOT NULL,
    detail TEXT,
    sandbox_id TEXT,
    agent_server_url TEXT,
    sealed BLOB NOT NULL,
    generation TEXT NOT NULL CHECK (generation IN ('v0', 'v1')),
    stages BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
, queue_position INTEGER) STRICT;

CREATE INDEX start_tasks_by_created ON start_tasks (user_id, created_at, id);

CREATE INDEX start_tasks_by_updated ON start_tasks (user_id, updated_at, id);

CREATE INDEX start_tasks_by_conversation ON start_tasks (conversation_id);

CREATE INDEX start_tasks_by_status ON start_tasks (status);

CREATE TABLE events (
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    source TEXT NOT NULL,
    body BLOB NOT NULL,
    received_at TEXT NOT NULL,
    PRIMARY KEY (conversation_id, seq),
    UNIQUE (conversation_id, id)
) STRICT;

CREATE TABLE device_logins (
    device_hash TEXT NOT NULL PRIMARY KEY,
    user_code_hash TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied')),
    user_id TEXT REFERENCES users (id) ON DELETE CASCADE,
    interval_seconds INTEGER NOT NULL,
    polled_at TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX device_logins_by_expiry ON device_logins (expires_at);

CREATE INDEX device_logins_by_user ON device_logins (user_id);

CREATE TABLE removed_conversations (
    id TEXT NOT NULL PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    told_at TEXT
) STRICT;

CREATE INDEX removed_conversations_by_sandbox ON removed_conversations (sandbox_id);

CREATE TABLE pending_messages (
    seq INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    message BLOB NOT NULL,
    -- How often the same was said before the first try to deliver it; NULL until then.
    said_before INTEGER,
    created_at TEXT NOT NULL
, run INTEGER NOT NULL DEFAULT 1, kind TEXT NOT NULL DEFAULT 'message', last_event TEXT, about TEXT NOT NULL DEFAULT '[]', is_tried INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE INDEX pending_messages_by_conversation ON pending_messages (conversation_id, seq);

CREATE TABLE installation (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

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
, disabled_reason TEXT NOT NULL DEFAULT '', quiet_until TEXT, former_sealed BLOB, former_until TEXT) STRICT;

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

CREATE TABLE sandbox_uses (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    active_at TEXT,
    -- Paused by a rule or to make room, so that the next message resumes it.
    culled_at TEXT,
    -- Waits for room since then.
    queued_at TEXT,
    -- Removals that failed, and when the next one is due.
    removal_tries INTEGER NOT NULL DEFAULT 0,
    removal_due_at TEXT
, may_pause_idle INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE INDEX sandbox_uses_queued ON sandbox_uses (queued_at)
WHERE queued_at IS NOT NULL;

CREATE INDEX sandbox_uses_removals ON sandbox_uses (removal_tries)
WHERE removal_tries > 0;

CREATE TABLE logins (
    id TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    key_id INTEGER NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    client TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX logins_by_key ON logins (key_id, last_used_at);

CREATE INDEX logins_by_expiry ON logins (expires_at);

CREATE TABLE login_links (
    hash TEXT NOT NULL PRIMARY KEY,
    key_id INTEGER NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX login_links_by_key ON login_links (key_id);

CREATE INDEX login_links_by_expiry ON login_links (expires_at);

CREATE TABLE client_sandboxes (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL,
    client_id TEXT NOT NULL,
    env_sealed BLOB NOT NULL,
    UNIQUE (user_id, client_id)
) STRICT;

CREATE INDEX webhook_subscriptions_former ON webhook_subscriptions (former_until)
WHERE former_until IS NOT NULL;

CREATE TABLE archives (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    conversation_id TEXT NOT NULL,
    title TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    working_dir TEXT NOT NULL,
    directory TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('saving', 'ready', 'failed')),
    reason TEXT NOT NULL DEFAULT '',
    -- Whether the sandbox is given up once it is saved, or cannot be.
    releases INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL DEFAULT 0,
    unpacked_bytes INTEGER NOT NULL DEFAULT 0,
    files INTEGER NOT NULL DEFAULT 0,
    skipped INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL
, rest TEXT NOT NULL DEFAULT '') STRICT;

CREATE INDEX archives_by_user ON archives (user_id, created_at, id);

CREATE INDEX archives_by_age ON archives (created_at, id);

CREATE INDEX archives_by_state ON archives (state);

CREATE TRIGGER webhooks_after_event AFTER INSERT ON events
WHEN EXISTS (SELECT 1 FROM webhook_subscriptions)
BEGIN
    INSERT INTO webhook_deliveries (subscription_id, lane, type, seq)
    SELECT s.id, NEW.conversation_id, 'conversation.event', NEW.seq
    FROM conversations AS c
    JOIN webhook_subscriptions AS s ON s.user_id = c.user_id
    WHERE c.id = NEW.conversation_id
      AND NEW.seq >= c.next_seq
      AND s.is_enabled
      AND (s.event_kinds IS NULL OR NEW.kind IN (SELECT value FROM json_each(s.event_kinds)));
END;

CREATE TABLE quotas (
    user_id TEXT NOT NULL PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    running_sandboxes INTEGER,
    conversations_per_hour INTEGER,
    spend_per_day REAL,
    spend_per_month REAL
) STRICT;

CREATE TABLE conversation_starts (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    started_at TEXT NOT NULL
) STRICT;

CREATE INDEX conversation_starts_by_user ON conversation_starts (user_id, started_at);

CREATE TABLE audit_log (
    number INTEGER NOT NULL PRIMARY KEY,
    at TEXT NOT NULL,
    -- Empty for what a command on this machine did.
    user_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    key_id INTEGER,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    status INTEGER NOT NULL,
    address TEXT NOT NULL,
    request_id TEXT NOT NULL
) STRICT;

CREATE INDEX audit_log_by_user ON audit_log (user_id, number);

CREATE INDEX audit_log_by_time ON audit_log (at);

CREATE TABLE kept_answers (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    operation TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    status INTEGER NOT NULL,
    media TEXT NOT NULL,
    sealed BLOB NOT NULL,
    size_bytes INTEGER NOT NULL,
    -- 0 while it is that of a stream that has only begun.
    is_final INTEGER NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX kept_answers_by_key ON kept_answers (user_id, operation, key_hash);

CREATE INDEX kept_answers_by_size ON kept_answers (user_id, size_bytes);

CREATE INDEX kept_answers_by_time ON kept_answers (created_at);

CREATE TABLE spares (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('making', 'ready', 'leaving', 'claimed', 'told')),
    spec BLOB NOT NULL,
    backend TEXT NOT NULL,
    made_of TEXT NOT NULL,
    key_sealed BLOB NOT NULL,
    handle BLOB,
    endpoints BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE INDEX spares_by_state ON spares (state, created_at, id);

CREATE TRIGGER spares_after_sandbox_delete AFTER DELETE ON sandboxes
BEGIN
    DELETE FROM spares WHERE id = OLD.id AND state IN ('claimed', 'told');
END;

CREATE TABLE model_grants (
    token_hash TEXT NOT NULL PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    sealed BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE INDEX model_grants_by_conversation ON model_grants (conversation_id);

CREATE TABLE model_usage (
    conversation_id TEXT NOT NULL PRIMARY KEY REFERENCES conversations (id) ON DELETE CASCADE,
    calls INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    dollars REAL NOT NULL
, largest REAL NOT NULL DEFAULT 0) STRICT;

CREATE TABLE model_calls (
    id TEXT NOT NULL PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    prompt_tokens INTEGER NOT NULL,
    dollars REAL NOT NULL
) STRICT;

CREATE INDEX model_calls_by_conversation ON model_calls (conversation_id);

CREATE TABLE "spending" (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    day TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    dollars REAL NOT NULL,
    PRIMARY KEY (user_id, day, model)
) STRICT;

CREATE TABLE model_hosts (
    host TEXT NOT NULL PRIMARY KEY,
    added_at TEXT NOT NULL
) STRICT;

CREATE INDEX api_keys_by_maker ON api_keys (made_with, user_id, name);

CREATE INDEX events_by_time ON events (conversation_id, timestamp, seq, kind);
