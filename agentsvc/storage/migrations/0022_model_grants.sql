-- Tokens with which sandboxes ask models through this server, by their hashes, with the models' keys
-- sealed; and what was used so, by the models' own counts.
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
) STRICT;
