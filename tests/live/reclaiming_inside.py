"""Run inside a kernel that has a disk to swap to: what becomes of the memory of sandboxes."""

import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from process.backend import ProcessBackend
from process.sandbox_directory import SandboxDirectory
from process.settings import ProcessConfig

from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Handle, Limits, Order, Phase, Port, Report
from tests.live.uml import tell

TOP: Final = Path("/mnt/groups")
DISK: Final = "/run/disk"
BALLAST_BYTES: Final = 48 * 2**20
SMALL_KIBIBYTES: Final = 8 * 1024
SERVES: Final = """
import hashlib, http.server, random, sys
ballast = random.Random(1).randbytes(int(sys.argv[2]))
count = 0
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{count} {hashlib.sha256(ballast).hexdigest()}".encode())
        count += 1
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def make_swap(kibibytes: int | None = None) -> None:
    size = [] if kibibytes is None else [str(kibibytes)]
    subprocess.run(["/usr/sbin/mkswap", DISK, *size], check=True, capture_output=True)
    subprocess.run(["/usr/sbin/swapon", DISK], check=True)


def drop_swap() -> None:
    subprocess.run(["/usr/sbin/swapoff", DISK], check=True)


async def opened(context: BackendContext, *, use_cgroups: bool) -> ProcessBackend:
    config = ProcessConfig(use_bubblewrap=False, use_cgroups=use_cgroups, zygote=False)
    backend = ProcessBackend(config, context)
    await backend.open()
    return backend


async def save(_handle: Handle) -> None:
    """Keep nothing."""


async def running(backend: ProcessBackend, handle: Handle) -> Report:
    async with asyncio.timeout(60):
        report = await backend.inspect(handle)
        while report.phase is not Phase.RUNNING:
            report = await backend.inspect(handle)
    return report


def ask(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        said: bytes = answer.read()
    return said.decode().split()


async def cycles(count: int, *, use_cgroups: bool) -> dict[str, Any]:
    """Freeze and reclaim a sandbox this often, each time by another backend."""
    context = BackendContext(instance_id=new_id(), state_dir=Path("/mnt") / new_id())
    backend = await opened(context, use_cgroups=use_cgroups)
    assert not backend.why_no_reclaim(), backend.why_no_reclaim()
    order = Order(
        sandbox_id=new_id(),
        command=("{python}", "-Ic", SERVES, "{port.web}", str(BALLAST_BYTES)),
        ports=(Port(name="web"),),
        limits=Limits(memory_bytes=256 * 2**20) if use_cgroups else Limits(),
    )
    handle = await backend.create(order, save)
    report = await running(backend, handle)
    place = SandboxDirectory(directory=context.state_dir / order.sandbox_id)
    seen: dict[str, list[Any]] = {
        "paused_as": [],
        "answers": [],
        "swapped_bytes": [],
        "seconds": [],
    }
    for _ in range(count):
        await backend.pause(handle)
        seen["paused_as"].append((await backend.inspect(handle)).paused_as)
        await backend.reclaim(handle)
        backend = await opened(context, use_cgroups=use_cgroups)
        seen["paused_as"].append((await backend.inspect(handle)).paused_as)
        pause = place.read_pause()
        assert pause is not None
        assert pause.memory is not None
        seen["swapped_bytes"].append(pause.memory.swapped_bytes)
        begun = time.monotonic()
        handle = await backend.resume(handle)
        seen["answers"].append(await asyncio.to_thread(ask, report.endpoints[0].url))
        seen["seconds"].append(round(time.monotonic() - begun, 3))
    limit = TOP.glob("agentsvc-*/memory.swap.max")
    swap_limit = next((path.read_text().strip() for path in limit), "")
    await backend.delete(handle)
    return {
        **seen,
        "cycles": count,
        "ballast_bytes": BALLAST_BYTES,
        "swap_limit": swap_limit,
        "digest": digest(),
    }


async def with_little_swap(*, use_cgroups: bool) -> dict[str, Any]:
    """Reclaim a sandbox for which swap is too small, and again once it is not."""
    make_swap(SMALL_KIBIBYTES)
    context = BackendContext(instance_id=new_id(), state_dir=Path("/mnt") / new_id())
    backend = await opened(context, use_cgroups=use_cgroups)
    order = Order(
        sandbox_id=new_id(),
        command=("{python}", "-Ic", SERVES, "{port.web}", str(BALLAST_BYTES)),
        ports=(Port(name="web"),),
    )
    handle = await backend.create(order, save)
    await running(backend, handle)
    await backend.pause(handle)
    seen = []

    async def reclaim() -> None:
        await backend.reclaim(handle)
        seen.append((await backend.inspect(handle)).paused_as)

    await reclaim()
    drop_swap()
    await backend.scan()
    none = bool(backend.why_no_reclaim())
    make_swap()
    await backend.scan()
    # It was just tried; after another start of the server it is at once.
    await reclaim()
    backend = await opened(context, use_cgroups=use_cgroups)
    await reclaim()
    await backend.delete(handle)
    drop_swap()
    return {"paused_as": seen, "none": none}


def digest() -> str:
    return hashlib.sha256(random.Random(1).randbytes(BALLAST_BYTES)).hexdigest()  # noqa: S311


async def before() -> str:
    context = BackendContext(instance_id=new_id(), state_dir=Path("/mnt") / new_id())
    return (await opened(context, use_cgroups=False)).why_no_reclaim()


def main() -> None:
    subprocess.run(["/usr/sbin/ip", "link", "set", "lo", "up"], check=True)
    TOP.mkdir()
    subprocess.run(["mount", "-t", "cgroup2", "none", str(TOP)], check=True)
    result: dict[str, Any] = {"before": asyncio.run(before())}
    os.mknod(DISK, 0o600 | 0o060000, os.makedev(98, 0))
    for way, use_cgroups in (("by_group", True), ("by_process", False)):
        result[f"little_{way}"] = asyncio.run(with_little_swap(use_cgroups=use_cgroups))
    make_swap()
    count = int(sys.argv[1])
    for way, use_cgroups in (("by_group", True), ("by_process", False)):
        result[way] = asyncio.run(cycles(count, use_cgroups=use_cgroups))
    tell(result)


if __name__ == "__main__":
    main()
