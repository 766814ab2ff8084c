-- How the sandbox of an archive rested before it was woken to be saved: '', 'paused', 'stopped' or 'culled'.
ALTER TABLE archives ADD COLUMN rest TEXT NOT NULL DEFAULT '';
