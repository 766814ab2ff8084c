"""Two users on one real server as it comes, each with a sandbox; one of them attacks the other.

Nothing is configured that an operator of a new installation would not have: bubblewrap, a user for
each sandbox where the server is root, the default network, the fork server.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.values import new_id
from tests.live.client import LiveClient
from tests.resilience.real import SECONDS, Inside, RealServer, real_server

DEFAULTS: Final = {
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "true",
    "AGENTSVC_SANDBOXES__START_SECONDS": str(SECONDS),
}
"""What `Installation` turns off for the sake of speed, and what an installation has by default; and
patience, which protects nobody, for a machine that does other things, too."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One user, and a sandbox of theirs."""

    name: str
    client: LiveClient
    inside: Inside
    directory: Path
    """Where the files of the sandbox are on this machine."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A server with somebody who attacks and somebody who is attacked."""

    server: RealServer
    attacker: Side
    victim: Side

    @property
    def level(self) -> str:
        """Return the isolation that the attacker's sandbox says it has."""
        return str(self.attacker.inside.sandbox.get("isolation"))


async def add_user(server: RealServer, name: str) -> LiveClient:
    """Return a client of a new member, whose settings name the server's model."""
    made = await server.client.post("/api/v1/users", json={"name": name, "role": "member"})
    assert made.status == 201, made.text
    path = f"/api/v1/users/{made.json()['id']}/keys"
    key = await server.client.post(path, json={"name": "campaign", "scope": "admin"})
    assert key.status in (200, 201), key.text
    client = LiveClient(server.installation.url, key.json()["key"], server.model)
    client.patience = SECONDS
    server.installation.keep(client)
    await client.save_settings()
    return client


async def start_sandbox(server: RealServer, client: LiveClient) -> Inside:
    """Start a sandbox of the default spec for a user, and wait until it answers."""
    answer = await client.post("/api/v1/sandboxes")
    assert answer.status in (200, 201), answer.text
    inside = server.of(await client.wait_for_sandbox(answer.json()["id"], "RUNNING"))
    await inside.until_it_answers()
    return inside


@asynccontextmanager
async def attacking_pair(
    directory: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Pair]:
    """Give a server at its defaults with two users, each with a running sandbox."""
    async with real_server(directory, {**DEFAULTS, **(environment or {})}) as server:
        sides = []
        for name in ("mallory", "alice"):
            client = await add_user(server, name)
            inside = await start_sandbox(server, client)
            sides.append(
                Side(
                    name=name,
                    client=client,
                    inside=inside,
                    directory=server.installation.sandbox_dir(inside.id),
                )
            )
        yield Pair(server=server, attacker=sides[0], victim=sides[1])


def not_at_default(pair: Pair) -> list[str]:
    """Say so where sandboxes are held less than the default level says."""
    return [] if pair.level == "bubblewrap" else [f"the level is {pair.level}, not bubblewrap"]


def encode(know: Any) -> str:
    """Return what a program inside is told, as the one argument it gets."""
    return msgspec.json.encode(know).decode()


_BEHIND: Final = r"""
import base64, json, os, subprocess, sys
know = json.loads(base64.b64decode(sys.argv[1]))
path = os.path.join(know["directory"], know["name"] + ".py")
with open(path, "w") as file:
    file.write(know["program"])
with open(os.path.join(know["directory"], know["name"] + ".know"), "w") as file:
    json.dump(know, file)
subprocess.Popen([sys.executable, path], cwd=know["directory"], start_new_session=True,
                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                 stderr=open(os.path.join(know["directory"], know["name"] + ".err"), "wb"))
print(json.dumps("begun"))
"""
PRELUDE: Final = r"""
import json, os, sys, time
NAME = os.path.splitext(os.path.abspath(__file__))[0]
with open(NAME + ".know") as _file:
    know = json.load(_file)
_until = time.monotonic() + know["seconds"]
def goes_on():
    return time.monotonic() < _until and not os.path.exists(NAME + ".stop")
def finish(found):
    with open(NAME + ".part", "w") as file:
        json.dump(found, file)
    os.rename(NAME + ".part", NAME + ".json")
"""
"""Before programs that run behind: `know`, `goes_on()` and, once, `finish(what was found)`."""


class Attack:
    """A program that goes on in a sandbox until it is told to finish, or its time is over."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self._place = side.directory / "workspace" / name

    @classmethod
    async def begin(cls, side: Side, program: str, *, seconds: float, **know: Any) -> "Attack":
        """Start a program behind, with what it is to know; it has a bounded time."""
        name = f"attack-{new_id()[:8]}"
        told = {
            **know,
            "name": name,
            "program": PRELUDE + program,
            "seconds": seconds,
            "directory": str(side.directory / "workspace"),
        }
        await side.inside.run(_BEHIND, encode(told))
        return cls(side, name)

    async def early(self, suffix: str) -> Any:
        """Return what it writes to a file of its own before it finishes."""
        return await _read(self._place.with_suffix(suffix))

    async def finish(self) -> Any:
        """Tell it to finish, and return what it has found."""
        # Whoever it belongs to outside, root may write there; a member's server may, too.
        await asyncio.to_thread(self._place.with_suffix(".stop").touch)
        return await _read(self._place.with_suffix(".json"))


async def _read(file: Path) -> Any:
    """Return the JSON in a file as soon as it is there, whole."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                return msgspec.json.decode(await asyncio.to_thread(file.read_bytes))
            await asyncio.sleep(0.05)
