"""Secrets of one user are looked for in the sandbox of another, and where this machine shows them.

Part of the row `canaries`: real sandboxes at the defaults. The keys of the server, and one user's
secrets, model key and sandbox key, are looked for in everything that another user's sandbox can read,
in the command lines and environments of all processes, and in what a server says where it starts.
"""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Final

from tests.live.scripts import run as commands
from tests.resilience.book import Ground
from tests.resilience.pair import Attack, Pair, attacking_pair, encode, not_at_default

_CANARY: Final = "canary-secret-of-alice"
_A_KEY: Final = re.compile(r"\basvc_[A-Za-z0-9_-]{20,}")
# It holds the secret in its memory and environment for as long as the other one looks.
HOLD: Final = r"""
os.environ["HELD"] = know["canary"]
with open(os.path.join(os.path.expanduser("~"), "held"), "w") as file:
    file.write(know["canary"])
with open("/tmp/held", "w") as file:
    file.write(know["canary"])
with open(NAME + ".ready", "w") as file:
    file.write("true")
while goes_on():
    time.sleep(0.05)
finish(None)
"""
LOOK: Final = r"""
import base64, glob, json, os, sys
know = json.loads(base64.b64decode(sys.argv[1]))
# So that this program does not find what it was told.
NEEDLES = {name: text[::-1].encode() for name, text in know["backwards"].items()}
ME = {str(os.getpid()), str(os.getppid())}
found, looked = set(), 0

def look(where, data):
    global looked
    looked += 1
    for name, needle in NEEDLES.items():
        if needle in data:
            found.add(f"{name} in {where}")

def read(path, most=8 << 20):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:
        return b""
    finally:
        os.close(descriptor)

for top in (*know["tops"], "/tmp", "/var/tmp", "/run", "/dev/shm", "/home", "/root", "/etc", "/var"):
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if one != "site-packages"][:200]
        for path in (os.path.join(folder, one) for one in files[:500]):
            if os.path.basename(path) != "probe.py" and os.path.isfile(path):
                look(path, read(path))
for pid in filter(str.isdigit, os.listdir("/proc")):
    if pid not in ME:
        look(f"the command line of {pid}", read(f"/proc/{pid}/cmdline"))
        look(f"the environment of {pid}", read(f"/proc/{pid}/environ"))
for path in glob.glob("/proc/net/*") + ["/proc/keys", "/proc/mounts", "/proc/self/mountinfo", "/proc/kallsyms"]:
    look(path, read(path))
print(json.dumps({"found": sorted(found), "looked": looked}))
"""


async def look_inside(ground: Ground) -> tuple[int, list[str]]:
    """Return in how many things it was looked, and where something was found."""
    async with attacking_pair(ground.place("default")) as pair:
        victim = pair.victim
        secrets = {"name": "OWN", "value": _CANARY}
        await victim.client.post("/api/v1/secrets", json=secrets)
        told = commands('echo "$OWN" >$HOME/used')
        name = await victim.client.start_conversation(told, sandbox_id=victim.inside.id)
        await victim.client.wait_for_execution(name, "finished")
        holding = await Attack.begin(victim, HOLD, seconds=120, canary=_CANARY)
        await holding.early(".ready")
        needles = {
            "a secret of another": _CANARY,
            "the session key of another": victim.inside.key,
            "the API key of another": str(victim.client.key),
            "the first key": pair.server.installation.key.reveal(),
            "the key of the model": pair.server.model.key.reveal(),
        }
        data = str(pair.server.installation.data.path)
        said = await pair.attacker.inside.run(
            LOOK,
            encode(
                {
                    "backwards": {name: text[::-1] for name, text in needles.items()},
                    "tops": [data, str(Path(data).parent)],
                }
            ),
        )
        shown = await asyncio.to_thread(_shown_by_processes, pair, needles)
        log = [
            f"{name} in the log"
            for name, text in needles.items()
            if text in pair.server.installation.log
        ]
        await holding.finish()
        wrong = [*not_at_default(pair), *said["found"], *shown, *log]
    wrong += await _at_first_start(ground)
    return int(said["looked"]), wrong


def _shown_by_processes(pair: Pair, needles: dict[str, str]) -> list[str]:
    """Look at the command lines of all, and at the environment of the server and what it has started."""
    victim = {one.pid for one in pair.server.installation.processes(pair.victim.inside.id)}
    own = {one.pid for one in pair.server.installation.processes()} | {pair.server.installation.pid}
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        try:
            line = (place / "cmdline").read_bytes()
            around = (place / "environ").read_bytes() if pid in own - victim else b""
        except OSError:
            continue
        for name, text in needles.items():
            found += [f"{name} in a command line"] if text.encode() in line else []
            found += [f"{name} in the environment of pid {pid}"] if text.encode() in around else []
    return found


async def _at_first_start(ground: Ground) -> list[str]:
    """Start a server that makes its own first key, with its output in a file as in a journal."""
    program = (
        "-m",
        "agentsvc",
        "serve",
        "--port",
        "0",
        "--data-dir",
        str(ground.place("first") / "data"),
    )
    said = await _said(program, ground.directory)
    if "is ready" not in said:
        return [f"a first start does not get ready: {said[-200:]}"]
    return ["the first key in what the server prints to a file"] if _A_KEY.search(said) else []


async def _said(program: tuple[str, ...], directory: Path) -> str:
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("AGENTSVC_")
    }
    environment["XDG_CONFIG_HOME"] = str(directory / "config")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    assert process.stdout is not None
    said = b""
    try:
        async with asyncio.timeout(60):
            while b"is ready" not in said and (part := await process.stdout.read(1 << 16)):
                said += part
            await asyncio.sleep(0.5)
    finally:
        if process.returncode is None:
            process.terminate()
        rest = await process.stdout.read()
        await process.wait()
    return (said + rest).decode(errors="replace")
