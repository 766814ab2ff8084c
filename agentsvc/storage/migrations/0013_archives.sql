-- Workspaces that were saved, or are being saved, in the data directory.
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
) STRICT;

CREATE INDEX archives_by_user ON archives (user_id, created_at, id);

CREATE INDEX archives_by_age ON archives (created_at, id);

CREATE INDEX archives_by_state ON archives (state);
