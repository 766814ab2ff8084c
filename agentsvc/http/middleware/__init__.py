"""Middleware of every request: request id, access log, errors, authentication, limits.

Begin with `pipeline`.
"""
