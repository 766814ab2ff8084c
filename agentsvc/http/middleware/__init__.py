"""Middleware: what surrounds every request."""
