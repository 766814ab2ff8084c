-- Users may be viewers, and may be blocked; what a key opens may be less than its user may do. A column
-- of its own takes the place of `role`, whose CHECK knew two roles: the table itself is referred to.
ALTER TABLE users ADD COLUMN kind TEXT NOT NULL DEFAULT 'member'
    CHECK (kind IN ('admin', 'member', 'viewer'));
UPDATE users SET kind = role;
ALTER TABLE users DROP COLUMN role;
ALTER TABLE users RENAME COLUMN kind TO role;
ALTER TABLE users ADD COLUMN blocked_at TEXT;

ALTER TABLE api_keys ADD COLUMN scope TEXT NOT NULL DEFAULT 'admin'
    CHECK (scope IN ('read', 'run', 'admin'));
