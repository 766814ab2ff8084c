-- Browsers that are logged in, each with a key, and links that log one in once. Tokens are stored as
-- hashes.
CREATE TABLE logins (
    id TEXT NOT NULL PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    key_id INTEGER NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    client TEXT NOT NULL,
    created_at TEXT NOT NULL,
    last_used_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX logins_by_key ON logins (key_id, last_used_at);
CREATE INDEX logins_by_expiry ON logins (expires_at);

CREATE TABLE login_links (
    hash TEXT NOT NULL PRIMARY KEY,
    key_id INTEGER NOT NULL REFERENCES api_keys (id) ON DELETE CASCADE,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX login_links_by_key ON login_links (key_id);
CREATE INDEX login_links_by_expiry ON login_links (expires_at);
