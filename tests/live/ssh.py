"""An SSH server on loopback that lets in one key, and an `ssh` that uses this key."""

import asyncio
import contextlib
import os
import pwd
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from tests.live.engines import EngineFailed, which

_PRIVILEGED: Final = Path("/run/sshd")
_SERVER: Final = """
HostKey {directory}/host
AuthorizedKeysFile {directory}/mine.pub
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
"""
_CLIENT: Final = """
IdentityFile {directory}/mine
IdentitiesOnly yes
UserKnownHostsFile {directory}/known
GlobalKnownHostsFile /dev/null
"""


class SshServer:
    """Answers each connection with a process of its own; `programs` has the `ssh` for the PATH."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "programs"
        self._directory = directory
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._running: set[asyncio.subprocess.Process] = set()

    @property
    def address(self) -> str:
        """Return the user and the place as they are in a URL."""
        return f"{pwd.getpwuid(os.geteuid()).pw_name}@127.0.0.1:{self._listener.getsockname()[1]}"

    def open(self) -> None:
        """Listen, and make the keys and files that both ends need. Blocks."""
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._listener.setblocking(False)
        self._prepare()

    async def close(self) -> None:
        """Listen no more, and end every connection."""
        self._listener.close()
        await self.hang_up()

    async def hang_up(self) -> None:
        """End every connection there is."""
        ended, self._running = self._running, set()
        for process in ended:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in ended:
            await process.wait()

    async def serve(self) -> None:
        """Answer whoever comes, until it is cancelled."""
        program = which("sshd") or ""
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            with connection:
                connection.setblocking(True)
                self._running.add(
                    await asyncio.create_subprocess_exec(
                        *(program, "-i", "-f", str(self._directory / "server")),
                        stdin=connection.fileno(),
                        stdout=connection.fileno(),
                        stderr=subprocess.DEVNULL,
                    )
                )

    def _prepare(self) -> None:
        place = self._directory
        for name in ("host", "mine"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
            subprocess.run(command, check=True)
        port = self._listener.getsockname()[1]
        key = (place / "host.pub").read_text()
        (place / "known").write_text(f"[127.0.0.1]:{port} {key}")
        (place / "server").write_text(_SERVER.format(directory=place))
        (place / "client").write_text(_CLIENT.format(directory=place))
        self.programs.mkdir()
        wrapper = self.programs / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {which("ssh")} -F {place}/client "$@"\n')
        wrapper.chmod(0o755)


@contextlib.asynccontextmanager
async def ssh_server(directory: Path) -> AsyncIterator[SshServer]:
    """Give a server; raises EngineFailed where there is no program for one."""
    if which("sshd") is None or which("ssh") is None:
        raise EngineFailed("there is no SSH here: install openssh-server")
    # As root it wants an empty directory, which a system that starts it makes.
    is_missing = os.geteuid() == 0 and not _PRIVILEGED.exists()
    if is_missing:
        _PRIVILEGED.mkdir(mode=0o755)
    server = SshServer(directory)
    try:
        await asyncio.to_thread(server.open)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve())
            yield server
            serving.cancel()
    finally:
        await server.close()
        if is_missing:
            with contextlib.suppress(OSError):
                _PRIVILEGED.rmdir()
