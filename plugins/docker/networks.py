"""A sandbox's own networks: subnets of a range, created and removed."""

import contextlib
import ipaddress
import random
from collections.abc import Iterable
from typing import Final

from agentsvc.base import AgentsvcError, BackendUnavailable, CapacityExceeded

from . import names
from .engine import Engine
from .failures import CONFLICT, NOT_FOUND
from .plan import Json
from .settings import SUBNET_BITS

_TRIES: Final = 8

type Network = ipaddress.IPv4Network


def taken(networks: Iterable[Json]) -> list[Network]:
    """Return the subnets of an engine's networks."""
    found = []
    for network in networks:
        for part in (network.get("IPAM") or {}).get("Config") or []:
            with contextlib.suppress(ValueError):
                found.append(ipaddress.IPv4Network(part.get("Subnet", ""), strict=False))
    return found


def choose(pool: str, used: Iterable[Network], start: int) -> Network:
    """Return a free subnet of the range, searching from `start`; raises CapacityExceeded."""
    whole = ipaddress.IPv4Network(pool)
    blocked = [one for one in used if one.overlaps(whole)]
    count = 2 ** (SUBNET_BITS - whole.prefixlen)
    for number in range(count):
        first = int(whole.network_address) + (start + number) % count * 2 ** (32 - SUBNET_BITS)
        part = ipaddress.IPv4Network((first, SUBNET_BITS))
        if not any(part.overlaps(one) for one in blocked):
            return part
    raise CapacityExceeded(f"All networks of {pool} are in use; give `subnets` a larger range")


def addresses(part: Network) -> tuple[str, str, str]:
    """Return the addresses of the bridge, the gateway container and the sandbox."""
    first = part.network_address
    return str(first + 1), str(first + 2), str(first + 3)


def body(name: str, part: Network, *, is_inner: bool, labels: dict[str, str]) -> Json:
    """Return the body of the request that creates a network."""
    options = {
        "com.docker.network.bridge.name": names.bridge(name),
        "com.docker.network.bridge.enable_icc": "true",
    }
    if is_inner:
        # If the bridge has no address, the engine's machine is not in the network at all.
        options["com.docker.network.bridge.inhibit_ipv4"] = "true"
    return {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": is_inner,
        "EnableIPv6": False,
        "IPAM": {"Config": [{"Subnet": str(part), "Gateway": addresses(part)[0]}]},
        "Options": options,
        "Labels": labels,
    }


async def ensure(
    engine: Engine, pool: str, name: str, *, is_inner: bool, labels: dict[str, str]
) -> Network:
    """Create a network unless it exists, and return its subnet."""
    why = ""
    for _ in range(_TRIES):
        known = await engine.ask("GET", "networks")
        for network in known:
            if network["Name"] == name and network.get("Labels") == labels:
                return taken([network])[0]
        start = random.randrange(2**16)  # noqa: S311  # to avoid collisions, not a secret
        part = choose(pool, taken(known), start)
        try:
            await engine.ask(
                "POST",
                "networks/create",
                body=body(name, part, is_inner=is_inner, labels=labels),
            )
        except AgentsvcError as exc:
            # Another server may have taken the subnet meanwhile; other errors show in the last
            # attempt.
            if not _is_taken(exc):
                raise
            why = exc.detail
            continue
        return part
    raise BackendUnavailable("The engine cannot create a network for the sandbox", detail=why)


async def remove(engine: Engine, name: str) -> None:
    """Disconnect all containers from a network and remove it."""
    network = await engine.get(f"networks/{name}")
    if network is None:
        return
    for container_id in network.get("Containers") or {}:
        await engine.ask(
            "POST",
            f"networks/{network['Id']}/disconnect",
            body={"Container": container_id, "Force": True},
            expect=(NOT_FOUND, CONFLICT, 500),
        )
    # The caller repeats this: a container may take a moment to leave the network.
    await engine.ask("DELETE", f"networks/{network['Id']}", expect=(403, NOT_FOUND, CONFLICT, 500))


def _is_taken(exc: AgentsvcError) -> bool:
    text = f"{exc.message} {exc.detail}".lower()
    return any(word in text for word in ("overlap", "already exists", "already used", "in use"))
