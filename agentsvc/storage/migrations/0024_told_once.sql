-- What else a user tells an agent is kept like a message, and where its agent's log ended before.
ALTER TABLE pending_messages ADD COLUMN kind TEXT NOT NULL DEFAULT 'message';

-- The last event before the first try, '' for the beginning of the log; NULL until it is known.
ALTER TABLE pending_messages ADD COLUMN last_event TEXT;

-- The actions that an answer is about, as JSON.
ALTER TABLE pending_messages ADD COLUMN about TEXT NOT NULL DEFAULT '[]';

ALTER TABLE pending_messages ADD COLUMN is_tried INTEGER NOT NULL DEFAULT 0;

UPDATE pending_messages
SET last_event = '', is_tried = 1
WHERE said_before IS NOT NULL;
