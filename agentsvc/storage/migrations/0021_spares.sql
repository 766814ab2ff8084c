-- Sandboxes that are started before anybody asks for them. One that somebody got has a row in `sandboxes`, too,
-- and stays here for what its agent server wants to hear each time it starts dormant.
CREATE TABLE spares (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('making', 'ready', 'leaving', 'claimed', 'told')),
    spec BLOB NOT NULL,
    backend TEXT NOT NULL,
    made_of TEXT NOT NULL,
    key_sealed BLOB NOT NULL,
    handle BLOB,
    endpoints BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE INDEX spares_by_state ON spares (state, created_at, id);

CREATE TRIGGER spares_after_sandbox_delete AFTER DELETE ON sandboxes
BEGIN
    DELETE FROM spares WHERE id = OLD.id AND state IN ('claimed', 'told');
END;
