"""A program that tells all it is, for a sandbox whose command it is; then it serves until it is ended."""

import json
import logging
import multiprocessing
import os
import random
import resource
import secrets
import signal
import socketserver
import ssl
import sys
import tempfile
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.plugins.process import zygote_settings

RIGHTS = (
    *("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "Umask"),
    *("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "THP_enabled"),
)


def chance() -> dict[str, Any]:
    """Return what must differ from one sandbox to the next."""
    with tempfile.NamedTemporaryFile() as file:
        name = Path(file.name).name
    return {
        "random": random.random(),  # noqa: S311  # it is under test
        "shared generator": zygote_settings.GENERATOR(),
        "secrets": secrets.token_hex(),
        "uuid4": str(uuid.uuid4()),  # noqa: TID251  # it is under test
        "uuid1": str(uuid.uuid1()),
        "openssl": ssl.RAND_bytes(16).hex(),
        "temporary name": name,
        "authentication of processes": bytes(multiprocessing.current_process().authkey).hex(),
    }


def nature() -> dict[str, Any]:
    """Return what must be as if it had been started in the usual way."""
    status = dict(
        line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    listed = Path("/proc/self/fd")
    return {
        "environment": dict(os.environ),
        "arguments": sys.argv[1:],
        "directory": str(Path.cwd()),
        "search path": sys.path,
        "flags": str(sys.flags),
        "name": __name__,
        "descriptors": sorted(str(one) for one in listed.iterdir() if one.exists()),
        "streams": [one.encoding for one in (sys.stdin, sys.stdout, sys.stderr)],
        "signals": [str(signal.getsignal(one)) for one in (2, 13, 15, 17, 25)],
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "limits": [resource.getrlimit(one) for one in range(16)],
        "rights": {name: status[name] for name in RIGHTS if name in status},
        "namespaces": {one.name: str(one.readlink()) for one in Path("/proc/self/ns").iterdir()},
        "groups": Path("/proc/self/cgroup").read_text(),
        "niceness": os.nice(0),
        "dispensable": Path("/proc/self/oom_score_adj").read_text(),
        "leads": os.getsid(0) == os.getpid(),
        "home": str(zygote_settings.KEPT),
        "home in a text": zygote_settings.TEXT,
        "home in a closure": zygote_settings.closure(),
        "temporary": tempfile.gettempdir(),
        "mounts": Path("/proc/self/mounts").read_text(),
        "thread": threading.current_thread() is threading.main_thread(),
        "time zone": time.tzname,
    }


def hostile() -> dict[str, Any]:
    """Return what a hostile package got when it was loaded ahead, if one was."""
    module = sys.modules.get("tests.plugins.process.zygote_hostile")
    return {} if module is None else {"got": module.GOT, "status": module.STATUS}


class Server(socketserver.TCPServer):
    """Takes connections."""

    allow_reuse_address = True


class Answers(BaseHTTPRequestHandler):
    """Tells what was found, or what is asked for."""

    def do_GET(self) -> None:
        data = json.dumps(TOLD).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    logging.getLogger("kept").error("logged by %s", os.environ["PROBE_NAME"])
    TOLD = {
        "chance": chance(),
        "nature": nature(),
        "pid": os.getpid(),
        "environ": Path("/proc/self/environ").read_bytes().decode(),
        "memory": sorted(zygote_settings.SEEN),
        "set while loading": zygote_settings.OWN,
        "is loaded ahead": "tests.plugins.process.zygote_later" in sys.modules,
        "hostile": hostile(),
        "set up": zygote_settings.NAMES,
    }
    with Server(("127.0.0.1", int(sys.argv[-1])), Answers) as server:
        server.serve_forever(poll_interval=0.02)
