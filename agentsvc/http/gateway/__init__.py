"""The gateway: every port of every sandbox, reached through this server's own one.

`/sandboxes/{sandbox_id}/{port name}/...` leads to a port. Some published clients keep only the host
of the URL they were given and call an agent server's paths at the root: a request there that shows
a sandbox's session key is for that sandbox. `authorization` decides who may pass, `target` makes the
request a sandbox gets, `http_proxy` and `websocket_proxy` carry it.
"""

from agentsvc.http.gateway.service import GATEWAY, Gateway, divert, mount_ports, mount_short_paths

__all__ = ["GATEWAY", "Gateway", "divert", "mount_ports", "mount_short_paths"]
