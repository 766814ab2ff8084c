"""Client connections: limits, timeouts, and responses to malformed requests.

Begin with `application`.
"""
