"""A Docker engine of a row's own, which it may end as it likes, with an image that does nothing."""

import asyncio
import contextlib
import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from agentsvc.base.values import monotonic
from tests.live import engines
from tests.live.engines import EngineFailed, Lease

IMAGE: Final = "campaign-idle:1"
COMMAND: Final = ("/bin/sleep", "infinity")
_PROGRAMS: Final = ("sh", "mkdir", "sleep")
_LIBRARY: Final = re.compile(r"(/\S+) \(0x")
_HTTP: Final = "http://engine"


class Dock:
    """An engine, and what is in it."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.url = lease.url

    def containers(self, **labels: str) -> list[dict[str, Any]]:
        """Return the containers with these labels, running or not."""
        wanted = [f"{name.replace('_', '.')}={value}" for name, value in labels.items()]
        return self._listed("/containers/json?all=true", wanted)

    def volumes(self, **labels: str) -> list[dict[str, Any]]:
        """Return the volumes with these labels."""
        wanted = [f"{name.replace('_', '.')}={value}" for name, value in labels.items()]
        found: list[dict[str, Any]] | None = self._asked(f"/volumes?filters={_filters(wanted)}")[
            "Volumes"
        ]
        return found or []

    def left(self, instance_id: str) -> list[str]:
        """Name all that there is of an installation."""
        wanted = [f"agentsvc.installation={instance_id}"]
        found = [str(one["Names"]) for one in self._listed("/containers/json?all=true", wanted)]
        found += [str(one["Name"]) for one in self._listed("/networks?", wanted)]
        volumes = self.volumes(agentsvc_installation=instance_id)
        return found + [str(one["Name"]) for one in volumes]

    def remove(self, container_id: str) -> None:
        """Remove a container by force."""
        engines.ask(self._lease.socket, "DELETE", f"/containers/{container_id}?force=true")

    def restart(self, how: signal.Signals) -> None:
        """End the engine in this way and wait until it is back."""
        self._lease.restart(how)

    async def make(self, labels: Mapping[str, str]) -> str:
        """Start a container of nobody's sandbox and return its id."""
        body = {"Image": IMAGE, "Cmd": COMMAND, "Labels": dict(labels)}
        connector = aiohttp.UnixConnector(str(self._lease.socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.post(f"{_HTTP}/containers/create", json=body) as answer:
                made = await answer.json()
                assert answer.status == http.client.CREATED, made
            container_id = str(made["Id"])
            async with session.post(f"{_HTTP}/containers/{container_id}/start") as answer:
                assert answer.status == http.client.NO_CONTENT, await answer.text()
        return container_id

    def _listed(self, path: str, labels: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._asked(f"{path}&filters={_filters(labels)}")
        return found

    def _asked(self, path: str) -> Any:
        return json.loads(engines.ask(self._lease.socket, "GET", path)[1])


def _filters(labels: list[str]) -> str:
    return quote(json.dumps({"label": labels}))


def why_none() -> str:
    """Say why no engine can be had here, or nothing if one can."""
    if os.geteuid() != 0:
        return "a Docker engine is started by root only"
    if engines.which("dockerd") is None:
        return "there is no dockerd here"
    return ""


@contextlib.asynccontextmanager
async def open_dock() -> AsyncIterator[Dock]:
    """Give an engine in a network of its own; all of it goes with it."""
    engine = _own()
    dock = await asyncio.to_thread(engine.__enter__)
    try:
        yield dock
    finally:
        await asyncio.to_thread(engine.__exit__, None, None, None)


@contextlib.contextmanager
def _own() -> Iterator[Dock]:
    # Its sockets need a short path.
    place = Path(tempfile.mkdtemp(prefix="asvc-", dir="/var/tmp"))  # as above
    try:
        with Lease(place / "engine", alone=True) as lease:
            _make_image(lease.socket)
            yield Dock(lease)
        deadline = monotonic() + engines.STOP_SECONDS
        while (place / "engine").exists() and monotonic() < deadline:
            threading.Event().wait(0.1)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _make_image(socket: Path) -> None:
    """Make an image of a few programs of this machine, and what they are linked with."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        libraries: set[str] = set()
        for name in _PROGRAMS:
            program = engines.which(name)
            assert program is not None, name
            tar.add(program, f"bin/{name}")
            linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
            libraries |= set(_LIBRARY.findall(linked.stdout))
        for library in sorted(libraries):
            tar.add(library, library.lstrip("/"))
    packed.seek(0)
    name, _, tag = IMAGE.partition(":")
    path = f"/images/create?fromSrc=-&repo={name}&tag={tag}"
    status, said = engines.ask(socket, "POST", path, body=packed)
    if status != http.client.OK or b'"error"' in said:
        raise EngineFailed(f"the image cannot be made: {said.decode()[-500:]}")
