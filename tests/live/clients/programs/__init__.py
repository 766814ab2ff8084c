"""Programs that use published clients; each is run by itself, where its client is installed."""
