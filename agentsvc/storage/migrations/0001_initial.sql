-- Times are TEXT in the form of values.to_stored: UTC, microseconds, Z; they sort as text.
-- JSON and sealed values are BLOBs: nothing in SQL looks inside them.

CREATE TABLE users (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL CHECK (role IN ('admin', 'member')),
    created_at TEXT NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id INTEGER PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT,
    revoked_at TEXT
) STRICT;

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
) STRICT;

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
) STRICT;

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

CREATE INDEX events_by_time ON events (conversation_id, timestamp, seq);
CREATE INDEX events_by_kind ON events (conversation_id, kind, timestamp, seq);
