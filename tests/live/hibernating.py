"""What tests of sandboxes on disk need: gVisor that can save, a workload that would notice, and kills.

`python -m tests.live.hibernating VERB CONFIG INSTANCE DIRECTORY HANDLE` calls a verb of the docker
backend once, as a server that may be killed while it does.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from agentsvc.plugin.backend import BackendContext, Handle
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.live import engines

VARIABLE = "TEST_RUNSC"
"""The runsc to use where that on the path is too old to save a container that has connections."""

KIND = PluginHost.load().backend_types()["docker"]

# A counter in memory, each value of which goes into a file; a secret in memory; a process of its own.
WORKLOAD = """
import hashlib, http.server, os, pathlib, subprocess, threading, time
memory = os.urandom(32 << 20)
run, count = os.urandom(8).hex(), 0
child = subprocess.Popen(["sleep", "100000"])
lines = open("lines", "a")
def work():
    global count
    while True:
        count += 1
        print(count, file=lines, flush=True)
        time.sleep(0.01)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/count":
            said = str(count)
        elif self.path == "/lines":
            said = pathlib.Path("lines").read_text()
        else:
            alive = child.poll() is None
            said = f"{run} {hashlib.sha256(memory).hexdigest()} {child.pid} {alive}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said.encode())
    def log_message(self, *_):
        pass
threading.Thread(target=work, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ["KIT_PORT"])), Handler).serve_forever()
"""


def runsc(directory: Path) -> Path | None:
    """Return a gVisor that can save what has connections, or None.

    Older ones take a container's network for the machine's own by a file that newer kernels show in
    all networks; in a copy, it has another name.
    """
    found = os.environ.get(VARIABLE) or engines.which("runsc")
    if found is None:
        return None
    told = subprocess.run([found, "flags"], capture_output=True, text=True, check=False)
    if "-net-disconnect-ok" not in told.stdout + told.stderr:
        return None
    copy = directory / "runsc"
    shown = b"/proc/sys/net/core/rmem_default"
    copy.write_bytes(Path(found).read_bytes().replace(shown, shown[:-4] + b"none"))
    copy.chmod(0o755)
    return copy


def settings(program: Path) -> dict[str, object]:
    """Return an engine's own settings with which it keeps sandboxes on disk."""
    arguments = ["--platform=systrap", "--net-disconnect-ok"]
    return {
        "experimental": True,
        "runtimes": {"runsc": {"path": str(program), "runtimeArgs": arguments}},
    }


async def main(verb: str, config: str, instance_id: str, directory: str, handle: str) -> None:
    context = BackendContext(instance_id=instance_id, state_dir=Path(directory))
    backend = KIND(msgspec.json.decode(config, type=KIND.Config), context)
    await backend.open()
    try:
        print("open", flush=True)  # noqa: T201  # for who waits for it
        await getattr(backend, verb)(msgspec.json.decode(handle, type=Handle))
    finally:
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
