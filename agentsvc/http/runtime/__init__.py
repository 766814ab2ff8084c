"""The remote runtime API, `/runtime`: other control planes keep their sandboxes at this server.

It has the shape their clients know, and the sandboxes are the same as everywhere else: decode,
call the core once, encode.
"""

from agentsvc.http.runtime.handlers import ROUTES

__all__ = ["ROUTES"]
