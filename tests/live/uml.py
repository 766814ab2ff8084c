"""A Linux of its own in one process, for what the kernel at hand holds differently.

User-mode Linux runs as an ordinary program on the files of this machine, read-only. Its kernel
has control groups of version 2 with every controller.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = "linux.uml"
_RESULT = "RESULT "
_CANNOT = "ptrace set fp regs failed"
_BOOT_SECONDS = 180.0


async def run_inside(
    directory: Path, module: str, *disks: Path, time_limit: float = _BOOT_SECONDS
) -> dict[str, Any]:
    """Boot, run a module as the first process's child, and return the JSON it printed.

    Arguments may follow the name of the module. Files that are given are block devices there:
    98:0, 98:16 and so on.
    """
    program = shutil.which(PROGRAM) or PROGRAM
    top = Path(__file__).parents[2]
    init = directory / "init"
    init.write_text(
        "#!/bin/sh\n"
        "mount -t proc proc /proc\n"
        "mount -t tmpfs -o mode=1777 run /run\n"
        "mount -t tmpfs mnt /mnt\n"
        f"cd {shlex.quote(str(top))}\n"
        f"PYTHONPATH={shlex.quote(str(top))} HOME=/run TMPDIR=/run {shlex.quote(sys.executable)} -B -m {module}\n"
        "echo o >/proc/sysrq-trigger\n"
        "sleep 60\n"
    )
    init.chmod(0o755)
    kernel = await asyncio.create_subprocess_exec(
        program, "rootfstype=hostfs", "rootflags=/", "ro", "mem=768M", f"init={init}",
        "con=null", "con0=null,fd:1", "quiet",
        *(f"ubd{number}={disk}" for number, disk in enumerate(disks)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(time_limit):
            output, _ = await kernel.communicate()
    finally:
        if kernel.returncode is None:
            # Its processes are ones of this machine, which go on without it.
            os.killpg(kernel.pid, signal.SIGKILL)
            await kernel.wait()
    text = output.decode(errors="replace")
    if _CANNOT in text:
        pytest.skip("user-mode Linux does not know the registers of this processor")
    found = [line for line in text.splitlines() if line.startswith(_RESULT)]
    assert found, f"it gave no result:\n{text[-4000:]}"
    result: dict[str, Any] = json.loads(found[-1].removeprefix(_RESULT))
    return result


def tell(result: dict[str, Any]) -> None:
    """Hand a result out; called inside."""
    sys.stdout.write(f"\n{_RESULT}{json.dumps(result)}\n")
    sys.stdout.flush()
