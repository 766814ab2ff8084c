-- What was answered to requests with an `Idempotency-Key`, sealed, since keys may be among it. Of the
-- key and of the request there is but a hash.
CREATE TABLE kept_answers (
    id TEXT NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    operation TEXT NOT NULL,
    key_hash BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    status INTEGER NOT NULL,
    media TEXT NOT NULL,
    sealed BLOB NOT NULL,
    size_bytes INTEGER NOT NULL,
    -- 0 while it is that of a stream that has only begun.
    is_final INTEGER NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX kept_answers_by_key ON kept_answers (user_id, operation, key_hash);

CREATE INDEX kept_answers_by_size ON kept_answers (user_id, size_bytes);

CREATE INDEX kept_answers_by_time ON kept_answers (created_at);
