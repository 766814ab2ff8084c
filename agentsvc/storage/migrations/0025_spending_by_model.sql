-- What was spent is told apart by model, and with its tokens; '' is a model that nobody knows.
CREATE TABLE spending_by_model (
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    day TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    dollars REAL NOT NULL,
    PRIMARY KEY (user_id, day, model)
) STRICT;

INSERT INTO spending_by_model (user_id, day, model, prompt_tokens, completion_tokens, dollars)
SELECT user_id, day, '', 0, 0, dollars
FROM spending;

DROP TABLE spending;

ALTER TABLE spending_by_model RENAME TO spending;
