"""Engines for the tests of sandboxes in containers, with our own image in them.

`python -m tests.live.containers` makes the image in the engine that CI has begun.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from agentsvc.base.values import monotonic
from agentsvc.cli.sandbox_image import default_name
from tests.live import engines, podman
from tests.live.engines import EngineFailed, Lease
from tests.live.podman import PodmanLease
from tests.live.rootless import RootlessLease

VARIABLE = "TEST_ENGINE"
"""An engine to use, by its URL, or the directory of one that CI has begun."""

IMAGE = default_name()

EVERYWHERE = "0.0.0.0"  # noqa: S104  # so that containers reach it

_BUILD_SECONDS = 1200


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that has our image."""

    url: str
    address: str
    """Where its containers find this machine."""
    image: str = IMAGE

    @property
    def socket(self) -> Path:
        return Path(self.url.removeprefix("unix://"))

    def ask(self, path: str) -> Any:
        """Return what the engine answers to a question."""
        return json.loads(engines.ask(self.socket, "GET", path)[1])

    def has(self, instance_id: str) -> list[str]:
        """Name all that the engine has of an installation."""
        query = "?filters=" + quote(json.dumps({"label": [f"agentsvc.installation={instance_id}"]}))
        found = [
            f"container {one['Names'][0]}" for one in self.ask(f"/containers/json{query}&all=true")
        ]
        found += [f"network {one['Name']}" for one in self.ask(f"/networks{query}")]
        volumes = self.ask(f"/volumes{query}")["Volumes"] or ()
        found += [f"image {one['Id']}" for one in self.ask(f"/images/json{query}")]
        return sorted(found + [f"volume {one['Name']}" for one in volumes])

    def why_no_gvisor(self) -> str:
        """Say why it runs no containers in gVisor, or nothing if it does."""
        if engines.which("runsc") is None:
            return "there is no gVisor here: its program is runsc"
        if "runsc" not in self.ask("/info")["Runtimes"]:
            return "gVisor's runsc runs no command on this kernel, or the engine was not told of it"
        return ""

    async def left(self, instance_id: str) -> list[str]:
        """Name the same, without keeping others waiting."""
        return await asyncio.to_thread(self.has, instance_id)


@contextmanager
def our_engine(directory: Path) -> Iterator[Engine]:
    """Give the engine of this test run, started by whichever worker is first; raises EngineFailed."""
    told = os.environ.get(VARIABLE, "")
    if told.startswith("unix://"):
        yield _ready(told, directory / "engine")
        return
    place = Path(told) if told else directory / "engine"
    if not told and not engines.is_used(place) and (reason := engines.why_not()):
        raise EngineFailed(reason)
    with Lease(place) as lease:
        yield _ready(lease.url, place)


@contextmanager
def our_podman(directory: Path, source: Engine) -> Iterator[Engine]:
    """Give Podman with the base image of another engine, which has a Python; raises EngineFailed."""
    if reason := podman.why_not():
        raise EngineFailed(reason)
    with PodmanLease(directory / "podman") as lease:
        with engines.one_at_a_time(lease.directory, "image"):
            podman.carry_image(engines.BASE, source.socket, lease.socket)
        yield Engine(url=lease.url, address=source.address, image=engines.BASE)


@contextmanager
def without_root(directory: Path, kind: str, source: Engine) -> Iterator[Engine]:
    """Give `docker` or `podman` of an ordinary user, with the base image; raises EngineFailed."""
    with RootlessLease(directory / f"rootless-{kind}", kind) as lease:
        with engines.one_at_a_time(lease.directory, "image"):
            podman.carry_image(engines.BASE, source.socket, lease.socket)
        yield Engine(url=lease.url, address=source.address, image=engines.BASE)


def _ready(url: str, place: Path) -> Engine:
    with engines.one_at_a_time(place, "image"):
        engines.make_base(Path(url.removeprefix("unix://")))
        build(url)
    return Engine(url=url, address=own_address())


def own_address() -> str:
    """Return an address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def build(url: str) -> None:
    """Have our image built, unless the engine has it; raises EngineFailed."""
    command = [sys.executable, "-m", "agentsvc", "images", "build", "--engine", url]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS
    )
    if result.returncode != 0:
        raise EngineFailed(f"the image cannot be built: {result.stderr[-2000:]}")


def main() -> None:
    began = monotonic()
    with our_engine(Path.cwd()) as engine:
        print(f"{engine.image} is there after {monotonic() - began:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
