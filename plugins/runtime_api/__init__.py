"""The remote runtime API, `/runtime`: other control planes run their sandboxes at this server.

The API is the one that their clients know, and the sandboxes are the same as everywhere else:
decode, call the core once, encode. Its client side, which starts sandboxes at such a server, is in
`plugins/remote`.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.handlers:RuntimeApi")
