-- What users may use at most, NULL where there is no limit, and what they have used: starts of conversations
-- within the last hour, and US dollars by UTC day, which stay when the conversation goes.
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

CREATE TABLE spending (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    day TEXT NOT NULL,
    dollars REAL NOT NULL,
    PRIMARY KEY (user_id, day)
) STRICT;
