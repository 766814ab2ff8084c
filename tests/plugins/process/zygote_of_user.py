"""Run as an ordinary user: what a hostile package gets that the fork server of this user loads.

With a second argument it runs on a kernel that has no Landlock, as far as it can tell.
"""

import asyncio
import ctypes
import errno
import json
import os
import struct
import sys
from pathlib import Path

from tests.plugins.process.test_zygote import probes
from tests.plugins.process.test_zygote_rights import NAMESPACES, HostileBackend, prey, space

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
CREATE_RULESET = 444


def be_without_landlock() -> None:
    steps = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, CREATE_RULESET),
        (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, 2, program, 0, 0) == 0


async def look(top: Path) -> dict[str, object]:
    """Return what it got, and how sandboxes were started that should be its forks."""
    with prey(top) as target:
        async with probes(top, HostileBackend, path=f"{os.environ['PATH']}:{target}") as bench:
            one, other = await bench.probe(), await bench.probe()
            found = (await bench.backend.probe()).facts["zygote"]
            pid = int(found.removeprefix("pid ")) if found.startswith("pid ") else os.getpid()
            return {
                "uid": os.getuid(),
                "zygote": found,
                "how": [one.how, other.how],
                "hostile": one.told["hostile"],
                "own": [
                    name
                    for name in ("user", *NAMESPACES)
                    if space(pid, name) != space(os.getpid(), name)
                ],
            }


if len(sys.argv) > 2:
    be_without_landlock()
sys.stdout.write(json.dumps(asyncio.run(look(Path(sys.argv[1])))))
