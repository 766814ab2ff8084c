"""A bad plugin harms only itself, whatever its hook and its backend do.

The plugin raises, hangs, blocks, leaks, answers rubbish, or tries to end the server, at every event
and every call. Meanwhile others ask the server for sandboxes of a good backend.
"""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base.values import monotonic
from tests.resilience import bad_plugin
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving

FAULTS: Final = 1000
SLOWEST_SECONDS: Final = 5.0
_HOW: Final = ("raise", "exit", "cancel", "rubbish", "leak", "block", "hang")
_SLOW: Final = ("block", "hang")
_PATH: Final = "/api/v1/sandboxes"
_NAMED: Final = re.compile(r"bad_plugin|`bad`|backend=bad|\"bad\"")


class Found(msgspec.Struct, kw_only=True):
    """What all faults have shown."""

    faults: dict[str, int] = {}
    harmed: list[str] = []
    unnamed: list[str] = []
    slowest_seconds: float = 0.0


async def run(ground: Ground) -> Outcome:
    wanted = ground.count(FAULTS, least=20)
    found = Found()
    directory = ground.place("server")
    config = {"sandboxes": {"call_seconds": 2.0, "sweep_seconds": 0.1}, "backends": {"bad": {}}}
    async with serving(directory, config=config, is_started=False) as server:
        shutil.copyfile(bad_plugin.__file__, directory / "plugins" / "bad_plugin.py")
        await server.start()
        # What waits takes its time; the others come until there are enough.
        while sum(found.faults.values()) < wanted:
            for how in _HOW:
                share = wanted // len(_HOW) // (10 if how in _SLOW else 1)
                await _do_harm(server, directory, how, max(2, share), found)
        crashes = 0 if (await server.client.get("/alive")).status == 200 else 1
    told = ", ".join(f"{count} {how}" for how, count in found.faults.items())
    return Outcome(
        did=(
            f"a hook and a backend of one plugin: {told}; sandboxes of a good backend made and"
            " deleted meanwhile"
        ),
        figures=(
            Figure(what="faults", value=sum(found.faults.values()), at_least=wanted),
            Figure(what="crashes", value=crashes, at_most=0),
            zero("others harmed", found.harmed),
            zero("kinds of faults whose error does not name the plugin", found.unnamed),
            Figure(
                what="s for a request of others at most",
                value=round(found.slowest_seconds, 2),
                at_most=SLOWEST_SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(found.harmed + found.unnamed),
    )


async def _do_harm(server: Server, directory: Path, how: str, count: int, found: Found) -> None:
    """Have the plugin do that so often, ask for what is good meanwhile, and stop it."""
    client = server.client
    fault, done = directory / "fault", directory / "done"
    before = _size(done)
    logged = len(server.installation.log)
    fault.write_text(how)
    made = (await client.post(f"{_PATH}?sandbox_spec_id=bad")).json()
    deadline = monotonic() + 60.0
    while _size(done) - before < count and monotonic() < deadline:
        await _ask_for_good(server, how, found)
    fault.unlink()
    found.faults[how] = found.faults.get(how, 0) + _size(done) - before
    if "id" in made:
        await client.delete(f"{_PATH}/{made['id']}")
    if how in ("raise", "exit", "cancel", "hang", "rubbish"):
        text = server.installation.log[logged:]
        if not _NAMED.search(text):
            found.unnamed.append(f"{how}: {text[-300:]}")


async def _ask_for_good(server: Server, how: str, found: Found) -> None:
    client = server.client
    began = monotonic()
    answer = await client.post(_PATH)
    found.slowest_seconds = max(found.slowest_seconds, monotonic() - began)
    if answer.status != 200:
        found.harmed.append(f"{how}: {answer.status} {answer.text[:200]}")
        return
    sandbox_id = answer.json()["id"]
    try:
        await client.wait_for_sandbox(sandbox_id, "RUNNING", time_limit=20.0)
    except AssertionError as exc:
        found.harmed.append(f"{how}: {exc}")
    began = monotonic()
    answer = await client.delete(f"{_PATH}/{sandbox_id}")
    found.slowest_seconds = max(found.slowest_seconds, monotonic() - began)
    if answer.status != 200:
        found.harmed.append(f"{how}: {answer.status} {answer.text[:200]}")
    await asyncio.sleep(0.01)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


ROW: Final = Row(name="plugins", half=Half.LOST, promise="a bad plugin harms only itself", run=run)
