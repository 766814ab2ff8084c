"""What every request passes through: request id, access log, errors, authentication, limits.

Begin with `pipeline`.
"""
