"""Durable storage: the SQLite database, its migrations, the vault for secrets."""
