-- Conversations that were deleted from a sandbox that others live in: its agent server is still to be
-- told, or may still report them.
CREATE TABLE removed_conversations (
    id TEXT NOT NULL PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    told_at TEXT
) STRICT;

CREATE INDEX removed_conversations_by_sandbox ON removed_conversations (sandbox_id);
