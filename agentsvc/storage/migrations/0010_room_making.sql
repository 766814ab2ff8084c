-- Whether an idle sandbox may be paused for this one, which waits for room.
ALTER TABLE sandbox_uses ADD COLUMN may_pause_idle INTEGER NOT NULL DEFAULT 0;
