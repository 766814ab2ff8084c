-- Hosts of models that administrators allow beside those of the configuration.
CREATE TABLE model_hosts (
    host TEXT NOT NULL PRIMARY KEY,
    added_at TEXT NOT NULL
) STRICT;
