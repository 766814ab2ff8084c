"""The configuration: every key with its default, read from file, environment and command line; the layout of the data directory."""
