"""The HTTP client of agent servers inside sandboxes."""
