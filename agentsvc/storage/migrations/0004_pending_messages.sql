-- Messages that wait until their conversation can take them, in the order they came.
CREATE TABLE pending_messages (
    seq INTEGER NOT NULL PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    message BLOB NOT NULL,
    -- How often the same was said before the first try to deliver it; NULL until then.
    said_before INTEGER,
    created_at TEXT NOT NULL
) STRICT;

CREATE INDEX pending_messages_by_conversation ON pending_messages (conversation_id, seq);
