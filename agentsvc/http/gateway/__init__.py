"""The gateway: a reverse proxy to the ports of all sandboxes.

`/sandboxes/{sandbox_id}/{port name}/...` is the path of a port. Some published clients keep only
the host of that URL and call an agent server's paths at the root: a request there with a session
key is for the key's sandbox. `authorization` authorizes requests, `target` builds the upstream
request, `http_proxy` and `websocket_proxy` forward it.
"""

from agentsvc.http.gateway.service import GATEWAY, Gateway, divert, mount_ports, mount_short_paths

__all__ = ["GATEWAY", "Gateway", "divert", "mount_ports", "mount_short_paths"]
