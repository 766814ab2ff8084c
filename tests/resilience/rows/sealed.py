"""What is stored secretly is sealed: rotation killed halfway, a wrong key, values moved between rows."""

import asyncio
import contextlib
import hashlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import monotonic, new_key
from agentsvc.config.data_directory import DataDirectory
from agentsvc.settings.secret_store import SecretStore
from agentsvc.storage.installation import Installation
from tests.http.gateway.steps import until
from tests.live.client import PATIENCE
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, command, serving

ROTATIONS: Final = 100
_SECRETS: Final = 400


async def run(ground: Ground) -> Outcome:
    kills = ground.count(ROTATIONS, least=3)
    secrets = {
        f"S{i}": f"canary-{ground.seed}-{i}" for i in range(ground.count(_SECRETS, least=20))
    }
    unreadable: list[str] = []
    halfway = 0
    async with serving(ground.place("server")) as server:
        await server.client.save_settings()
        for name, value in secrets.items():
            await server.client.post("/api/v1/secrets", json={"name": name, "value": value})
        user_id = (await server.client.get("/api/v1/users/me")).json()["id"]
        await server.installation.stop()
        places = server.installation.data
        began = monotonic()
        unreadable += await _rotate(places)
        whole_seconds = monotonic() - began
        for number in range(kills):
            await _break_off(ground, places, whole_seconds, is_late=number % 2 == 0)
            if places.next_master_key.exists():
                halfway += 1
            unreadable += await _rotate(places)
            unreadable += await _read(places, user_id.replace("-", ""), secrets)
        moved = await _move(places, ground.place("moved"), user_id.replace("-", ""))
        wrong = await _wrong_key(server)
        await server.start()
        named = (await server.client.get("/api/v1/secrets/search?limit=100")).json()["items"]
        unreadable += [] if named else ["no secret is listed"]
    return Outcome(
        did=(
            f"`agentsvc keys rotate-master` with {len(secrets)} secrets killed, {halfway} of them"
            " with both keys there, finished, everything read; a server with a wrong key; sealed"
            " values copied to other rows"
        ),
        figures=(
            Figure(what="rotations killed", value=kills, at_least=kills),
            zero("unreadable", unreadable),
            zero("starts with a wrong key, or changes by them", wrong),
            zero("values that open in another row", moved),
        ),
        problems=tuple(unreadable + wrong + moved),
    )


async def _rotate(places: DataDirectory) -> list[str]:
    """Rotate the master key, and return what went wrong."""
    done = await asyncio.to_thread(command, "keys", "rotate-master", "--data-dir", str(places.path))
    return [done.stderr] if done.returncode else []


async def _break_off(
    ground: Ground, places: DataDirectory, whole_seconds: float, *, is_late: bool
) -> None:
    """Kill a rotation: once it has made its key and a moment more, or at any time."""
    program = (sys.executable, "-m", "agentsvc", "keys", "rotate-master")
    process = subprocess.Popen(  # noqa: ASYNC220  # it is waited for in a thread
        [*program, "--data-dir", str(places.path)], stderr=subprocess.DEVNULL
    )
    if is_late:
        await until(
            lambda: places.next_master_key.exists() or process.poll() is not None,
            time_limit=PATIENCE,
        )
        await asyncio.sleep(ground.chance.uniform(0, 0.1))
    else:
        await asyncio.sleep(ground.chance.uniform(0, whole_seconds))
    process.kill()
    await asyncio.to_thread(process.wait, PATIENCE)


async def _read(places: DataDirectory, user_id: str, secrets: dict[str, str]) -> list[str]:
    """Return which secrets cannot be read, or are not what they were."""
    installation = await Installation.open(places)
    try:
        store = SecretStore(installation.database, installation.vault)
        found = await store.custom_secrets(user_id)
    except AgentsvcError as exc:
        return [str(exc)]
    finally:
        await installation.close()
    there = {name: secret.value.reveal() for name, secret in found.items()}
    return [name for name, value in secrets.items() if there.get(name) != value]


async def _move(places: DataDirectory, directory: Path, user_id: str) -> list[str]:
    """Copy one row's sealed value to another; it must not open there."""
    copy = DataDirectory(path=directory / "data")
    await asyncio.to_thread(shutil.copytree, places.path, copy.path)
    with contextlib.closing(sqlite3.connect(copy.database)) as db:
        db.execute(
            "UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'S0')"
            " WHERE name = 'S1'"
        )
        db.commit()
    installation = await Installation.open(copy)
    try:
        store = SecretStore(installation.database, installation.vault)
        found = (await store.custom_secrets(user_id)).get("S1")
    except AgentsvcError:
        return []
    finally:
        await installation.close()
    return [f"S1 opens as {found}"]


async def _wrong_key(server: Server) -> list[str]:
    """Start with another key: it has to be refused, and to change nothing."""
    places = server.installation.data
    right = places.master_key.read_bytes()
    before = _digest(places.database)
    places.master_key.write_text(new_key().reveal() + "\n")
    try:
        done = await asyncio.to_thread(
            command, "serve", "--port", "0", "--data-dir", str(places.path)
        )
    finally:
        places.master_key.write_bytes(right)
    wrong = [] if done.returncode else ["it starts"]
    if "is not the one that sealed" not in done.stderr:
        wrong.append(f"it says: {done.stderr}")
    return wrong + ([] if _digest(places.database) == before else ["the database was changed"])


def _digest(database: Path) -> str:
    """Return what names the content of a database, in whichever of its files that is."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        return hashlib.sha256("\n".join(db.iterdump()).encode()).hexdigest()


ROW: Final = Row(name="sealed", half=Half.IN, promise="sealed at rest", run=run)
