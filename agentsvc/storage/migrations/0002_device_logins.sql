-- Keys may be valid for a limited time.

ALTER TABLE api_keys ADD COLUMN not_before TEXT;
ALTER TABLE api_keys ADD COLUMN expires_at TEXT;

-- Programs that wait for a user to let them in. Both codes are stored as hashes.

CREATE TABLE device_logins (
    device_hash TEXT NOT NULL PRIMARY KEY,
    user_code_hash TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied')),
    user_id TEXT REFERENCES users (id) ON DELETE CASCADE,
    interval_seconds INTEGER NOT NULL,
    polled_at TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX device_logins_by_expiry ON device_logins (expires_at);
CREATE INDEX device_logins_by_user ON device_logins (user_id);
