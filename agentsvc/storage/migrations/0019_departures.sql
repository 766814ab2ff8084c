-- Since when a user is being deleted: the row goes after what the user owns.
ALTER TABLE users ADD COLUMN leaving_at TEXT;
