-- How each sandbox is held, what a paused one still has, and why one has failed, as its backend says.
ALTER TABLE sandboxes ADD COLUMN isolation TEXT;
ALTER TABLE sandboxes ADD COLUMN paused_as TEXT;
ALTER TABLE sandboxes ADD COLUMN cause TEXT;
-- A JSON array of the limits that are enforced.
ALTER TABLE sandboxes ADD COLUMN enforced BLOB NOT NULL DEFAULT x'5b5d';
