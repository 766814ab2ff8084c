"""Renders conversations in a terminal, in plain text or in colour."""
