"""The backends that ship with the server: local processes."""
