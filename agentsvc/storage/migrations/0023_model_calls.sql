-- Calls of models that are under way, with what each may cost; and what the dearest so far has cost.
CREATE TABLE model_calls (
    id TEXT NOT NULL PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    prompt_tokens INTEGER NOT NULL,
    dollars REAL NOT NULL
) STRICT;

CREATE INDEX model_calls_by_conversation ON model_calls (conversation_id);

ALTER TABLE model_usage ADD COLUMN largest REAL NOT NULL DEFAULT 0;
