-- What another server that keeps sandboxes here said of each: its own id for it, and variables.

CREATE TABLE client_sandboxes (
    sandbox_id TEXT NOT NULL PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL,
    client_id TEXT NOT NULL,
    env_sealed BLOB NOT NULL,
    UNIQUE (user_id, client_id)
) STRICT;
