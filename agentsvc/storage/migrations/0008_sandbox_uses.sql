-- When sandboxes were last used, which wait for room, which were paused without being asked to, and
-- how often their removal has failed. What has no row was used last when it was made.
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
) STRICT;

CREATE INDEX sandbox_uses_queued ON sandbox_uses (queued_at)
WHERE queued_at IS NOT NULL;

CREATE INDEX sandbox_uses_removals ON sandbox_uses (removal_tries)
WHERE removal_tries > 0;

-- The place of the start in the queue for room, counted from 1; NULL while it does not wait.
ALTER TABLE start_tasks ADD COLUMN queue_position INTEGER;

-- Whether the agent is to go on with the message.
ALTER TABLE pending_messages ADD COLUMN run INTEGER NOT NULL DEFAULT 1;
