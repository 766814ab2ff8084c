-- What holds for the whole installation, such as which master key has sealed what is stored.

CREATE TABLE installation (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
