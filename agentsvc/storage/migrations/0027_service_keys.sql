-- A key may be a service's, which makes keys for users; those know what they were made with.
ALTER TABLE api_keys ADD COLUMN opens TEXT NOT NULL DEFAULT 'admin'
    CHECK (opens IN ('read', 'run', 'admin', 'service'));

UPDATE api_keys SET opens = scope;

ALTER TABLE api_keys DROP COLUMN scope;

ALTER TABLE api_keys RENAME COLUMN opens TO scope;

ALTER TABLE api_keys ADD COLUMN made_with INTEGER REFERENCES api_keys (id) ON DELETE CASCADE;

CREATE INDEX api_keys_by_maker ON api_keys (made_with, user_id, name);
