"""What a server under test loads first: it notes every connection, and knows names that lead inside.

Python imports a module of this name by itself where it is on the path. Connections to the ports in
CAMPAIGN_PORTS are noted in CAMPAIGN_CONNECTIONS and not made. A name below `inside.test` leads where
its first part says: `at-10-0-0-1`; `flips` to a public address first, then to this machine;
`both` to a public address and this machine.
"""

import os
import socket
import sys
from typing import Any

_FILE = os.environ["CAMPAIGN_CONNECTIONS"]
_PORTS = {int(port) for port in os.environ["CAMPAIGN_PORTS"].split(",")}
_PUBLIC = "93.184.215.14"
_OWN = "127.0.0.1"
_asked: dict[str, int] = {}
_real = socket.getaddrinfo


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect" or not isinstance(arguments[1], tuple):
        return
    host, port = arguments[1][:2]
    if port not in _PORTS:
        return
    with open(_FILE, "a") as file:  # noqa: PTH123  # nothing more is to be imported here
        file.write(f"{host} {port}\n")
    raise ConnectionRefusedError("not in a run of the resilience tests")


def _look_up(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if not name.rstrip(".").lower().endswith(".inside.test"):
        return _real(host, port, *rest, **more)
    label = name.lower().partition(".")[0]
    _asked[label] = _asked.get(label, 0) + 1
    if label.startswith("at-"):
        found = [label.removeprefix("at-").replace("-", ".")]
    elif label.startswith("both"):
        found = [_PUBLIC, _OWN]
    else:
        found = [_PUBLIC if _asked[label] % 2 else _OWN]
    return [answer for address in found for answer in _real(address, port, *rest, **more)]


sys.addaudithook(_note)
socket.getaddrinfo = _look_up
