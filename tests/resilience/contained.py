"""Servers whose sandboxes are containers, on an engine that all rows of one campaign share."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.values import monotonic
from tests.live.containers import EVERYWHERE, VARIABLE, Engine, our_engine
from tests.live.engines import EngineFailed
from tests.resilience.real import RealServer, real_server

_START_SECONDS: Final = 240
_GONE_SECONDS: Final = 60.0


@asynccontextmanager
async def engine_or_why_not() -> AsyncIterator[Engine | str]:
    """Give a Docker engine with our image, or say why there is none; it ends with its last user."""
    # Of the resilience tests, which is the parent of what runs a row; no directory of a row, as it outlives it.
    directory = Path(f"/tmp/campaign-engine-{os.getppid()}")  # noqa: S108  # sockets have short names
    try:
        with ExitStack() as stack:
            try:
                await asyncio.to_thread(directory.mkdir, mode=0o700, exist_ok=True)
                found: Engine | str = await asyncio.to_thread(
                    stack.enter_context, our_engine(directory)
                )
            except (EngineFailed, OSError, subprocess.SubprocessError) as exc:
                found = f"there is no engine with our image: {exc}"
            yield found
    finally:
        await _until_gone(directory)


async def _until_gone(directory: Path) -> None:
    """Wait for the engine to be removed, unless another row uses it, and remove what it leaves."""
    until = monotonic() + _GONE_SECONDS
    while VARIABLE not in os.environ and (directory / "engine").exists():
        if monotonic() > until:
            return
        await asyncio.sleep(0.2)
    await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


@asynccontextmanager
async def server_of_containers(
    directory: Path, engine: Engine, networks: Mapping[str, Mapping[str, Any]]
) -> AsyncIterator[RealServer]:
    """Give a server with specs of containers of our image; each has its name and its own keys."""
    environment = {
        "AGENTSVC_SERVER__HOST": EVERYWHERE,
        "AGENTSVC_BACKENDS__DOCKER__HOST": engine.url,
        "AGENTSVC_SANDBOXES__DEFAULT_BACKEND": "docker",
        "AGENTSVC_SANDBOXES__DEFAULT_SPEC": next(iter(networks)),
        "AGENTSVC_SANDBOXES__START_SECONDS": str(_START_SECONDS),
    }
    for name, keys in networks.items():
        spec = {"image": engine.image, "ports": [{"name": "agent", "number": 8000}], **keys}
        for key, value in spec.items():
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            environment[f"AGENTSVC_SPECS__{name.upper()}__{key.upper()}"] = text
    async with real_server(directory, environment, model_at=engine.address) as server:
        yield server


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the files of a sandbox's neighbour are on this machine, and whom it should not reach."""

    files: Path
    hosts: tuple[str, ...]


def parts_of(engine: Engine, sandbox_id: str, other_id: str) -> Parts:
    """Return what there is beside a sandbox: another one, its gateway, and the engine's machine."""
    mounts = engine.ask(f"/containers/oh-agent-server-{other_id}/json")["Mounts"]
    [files] = [Path(one["Source"]) for one in mounts if one["Destination"] == "/workspace"]
    bridges = [one for one in engine.ask("/networks") if one["Name"] == "bridge"]
    subnets = [one["Subnet"] for bridge in bridges for one in bridge["IPAM"]["Config"]]
    # The engine's machine has the first address.
    hosts = [str(next(ip_network(subnet).hosts())) for subnet in subnets]
    for one in engine.ask("/containers/json"):
        if sandbox_id not in one["Names"][0]:
            found = one["NetworkSettings"]["Networks"].values()
            hosts += [network["IPAddress"] for network in found if network["IPAddress"]]
    return Parts(files=files, hosts=tuple(hosts))
