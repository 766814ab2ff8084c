-- Who changed what. Entries outlive the users and keys that they name.
CREATE TABLE audit_log (
    number INTEGER NOT NULL PRIMARY KEY,
    at TEXT NOT NULL,
    -- Empty for what a command on this machine did.
    user_id TEXT NOT NULL,
    user_name TEXT NOT NULL,
    key_id INTEGER,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    status INTEGER NOT NULL,
    address TEXT NOT NULL,
    request_id TEXT NOT NULL
) STRICT;

CREATE INDEX audit_log_by_user ON audit_log (user_id, number);

CREATE INDEX audit_log_by_time ON audit_log (at);
