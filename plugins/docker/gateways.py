"""The gateway container of a sandbox whose network is restricted.

Such a sandbox is in a network with the gateway alone, in which the engine's machine has no address.
The gateway forwards connections of the server in, reports to the server out, and requests to
`allow_hosts` through the proxy of `agentsvc.egress`, whose code is copied into it.
"""

import json
from pathlib import Path
from typing import Final

from agentsvc.plugin import Order, backend, choose_ports

from . import names
from .plan import Json, archive_of, bindings

PROXY_PORT: Final = 3128

_DIRECTORY: Final = "opt/agentsvc-gateway"
_POLICY: Final = f"{_DIRECTORY}/policy.json"
_USER: Final = "65534:65534"
_MEMORY: Final = 256 * 1024 * 1024
_PIDS: Final = 128


def body(
    order: Order,
    image: str,
    *,
    networks: tuple[str, str],
    addresses: tuple[str, str, str],
    publish: str,
    callback: tuple[str, int] | None,
    hosts: tuple[str, ...],
    has_init: bool,
    instance_id: str,
) -> Json:
    """Return the body of the request that creates the gateway.

    `networks` are the outer and the inner one; `addresses` the gateway's in both of them and the
    sandbox's; `callback` is the address of this server.
    """
    ports = choose_ports(order.ports)
    outer, inner, sandbox = addresses
    relays = [(outer, number, sandbox, number) for number in ports.values()]
    if callback is not None:
        relays.append((inner, callback[1], *callback))
    arguments = ["--policy", f"/{_POLICY}", "--host", inner, "--port", str(PROXY_PORT)]
    for relay in relays:
        arguments += ["--relay", *map(str, relay)]
    return {
        "Image": image,
        "Entrypoint": ["python3", "-B", "-m", "agentsvc.egress"],
        "Cmd": arguments,
        "Env": [f"PYTHONPATH=/{_DIRECTORY}"],
        "User": _USER,
        "WorkingDir": "/",
        "Labels": names.labels(instance_id, order.sandbox_id, "gateway"),
        "ExposedPorts": {f"{number}/tcp": {} for number in ports.values()},
        "HostConfig": {
            "Init": has_init,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": _MEMORY,
            "PidsLimit": _PIDS,
            "RestartPolicy": {"Name": "unless-stopped"},
            "NetworkMode": networks[0],
            "ExtraHosts": list(hosts),
            "PortBindings": bindings(ports, publish),
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "2"}},
        },
        "NetworkingConfig": {
            "EndpointsConfig": {networks[0]: {"IPAMConfig": {"IPv4Address": outer}}}
        },
    }


def archive(order: Order) -> bytes:
    """Return the files of a gateway: the proxy's code and the sandbox's policy.

    Reads them from the installed package; blocks.
    """
    package = Path(backend.__file__).parent
    policy = {
        "mode": str(order.network),
        "allow_hosts": order.allow_hosts,
        "needed": [_split(host) for host in order.reaches],
        "models": [_split(host) for host in order.models],
    }
    files = {
        f"{_DIRECTORY}/agentsvc/__init__.py": b"",
        _POLICY: json.dumps(policy).encode(),
    }
    for file in (package / "egress").glob("*.py"):
        files[f"{_DIRECTORY}/agentsvc/egress/{file.name}"] = file.read_bytes()
    return archive_of(files)


def _split(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name, int(port)
