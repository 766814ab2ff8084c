"""The HTTP server: connections, limits and the application that requests reach."""
