"""The remote runtime API, `/runtime`: other control planes keep their sandboxes at this server.

It has the shape their clients know, and the sandboxes are the same as everywhere else: decode,
call the core once, encode. Its other side, which starts sandboxes at such a server, is in
`plugins/remote`.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.handlers:RuntimeApi")
