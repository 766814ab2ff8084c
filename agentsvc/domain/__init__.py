"""What callers may ask of an agent: orders, agent options, tool servers (MCP), repositories."""
