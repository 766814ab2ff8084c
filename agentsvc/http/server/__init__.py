"""Connections to the server: limits, timeouts, and answers to what cannot be parsed.

Begin with `application`.
"""
