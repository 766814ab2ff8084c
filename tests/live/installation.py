"""A server as a process of its own, on its own data, for tests that end it in every way there is."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from process.sandbox_directory import list_temps
from process.tree import Process, marks, send, snapshot

from agentsvc.base.values import Secret, monotonic, new_key
from agentsvc.config.data_directory import DataDirectory
from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE, LiveClient

_READY = re.compile(r"is ready: (\S+)")
_GROUPS = Path("/sys/fs/cgroup")
_TEMP = Path("/tmp")  # noqa: S108  # where the process backend keeps what must have a short path


class Installation:
    """One data directory and, unless it is stopped or killed, the server on it.

    `environment` is added to the server's own, and `launcher` goes before its command. What it logs
    is in `log`, over all its runs.
    """

    def __init__(
        self,
        directory: Path,
        model: ScriptedModel,
        environment: dict[str, str] | None = None,
        *,
        launcher: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.model = model
        self.data = DataDirectory(path=directory / "data")
        self.key = new_key("asvc_")
        self.url = ""
        self._environment = environment or {}
        self._launcher = launcher
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[LiveClient] = []
        self._others: list[LiveClient] = []

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def environment(self) -> str:
        """Return the environment the server was started with."""
        return Path(f"/proc/{self.pid}/environ").read_text()

    @property
    def pid(self) -> int:
        """Return the process id of the server."""
        assert self._process is not None
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        """Return how much memory the server uses."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        """Return how many files and connections the server has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208  # names are enough

    # The server's life

    async def start(self) -> None:
        """Start the server, on the port it had before if it had one, and wait until it is ready."""
        known = self.spawn()
        self.url = await eventually(lambda: self._said_url(known), "the server is ready")

    def spawn(self) -> int:
        """Start the server without waiting for it; return how long its log was before."""
        port = self.url.rpartition(":")[2] or "0"
        command = [*self._launcher, sys.executable, "-m", "agentsvc", "serve", "--port", port]
        with self._log.open("ab") as log:
            known = log.tell()
            self._process = self._run([*command, "--data-dir", str(self.data.path)], log)
        return known

    def tell(self, number: signal.Signals) -> None:
        """Send the server a signal, and wait for nothing."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End the server as a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """Ask the server to end and return its exit code."""
        return await self._end(signal.SIGTERM)

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def close(self) -> None:
        """Delete every sandbox and end the server; fails if anything of them is left."""
        try:
            if self._process is not None and self._process.poll() is None:
                for client in (self.client(), *self._others):
                    await _delete_all(client)
        finally:
            for client in self._clients:
                await client.close()
            if self._process is not None:
                await self._end(signal.SIGKILL)
            left = self.leftovers()
            await self._remove_by_force()
        assert left == [], f"something is left: {left}"

    def client(self) -> LiveClient:
        """Return a client of the server with its first key."""
        client = LiveClient(self.url, self.key.reveal(), self.model)
        self._clients.append(client)
        return client

    def keep(self, client: LiveClient) -> None:
        """Have a client of another user, whose sandboxes go and who is closed with the server."""
        self._clients.append(client)
        self._others.append(client)

    # What there is of it

    def processes(self, sandbox_id: str = "") -> list[Process]:
        """Return the processes of a sandbox, or of all: those that carry its mark, and their children.

        A fork has the environment of the fork server in /proc, and so no mark.
        """
        mark = f"{self.instance_id}/{sandbox_id}"
        table = snapshot()
        found = {pid for pid in table if any(one.startswith(mark) for one in marks(pid))}
        while more := {pid for pid, one in table.items() if one.parent in found} - found:
            found |= more
        return [table[pid] for pid in found if table[pid].state not in ("Z", "X")]

    def agent_servers(self, sandbox_id: str = "") -> list[int]:
        """Return the pids of the agent servers of a sandbox, or of all.

        What one has just started shows its command line until it is another program.
        """
        found = {
            process.pid: process.parent
            for process in self.processes(sandbox_id)
            if _is_agent_server(command_line(process.pid))
        }
        return [pid for pid, parent in found.items() if parent not in found]

    def sandbox_dir(self, sandbox_id: str) -> Path:
        return self.data.backends / "process" / sandbox_id

    def sandbox_dirs(self) -> list[Path]:
        root = self.data.backends / "process"
        return sorted(root.iterdir()) if root.exists() else []

    def temp_dirs(self) -> list[Path]:
        """Return the directories of its sandboxes below the system's temporary directory."""
        found = list_temps(_TEMP)
        return [path for path, mark in found if mark.startswith(f"{self.instance_id}/")]

    def groups(self) -> list[Path]:
        """Return the control groups of its sandboxes, those in others first."""
        name = f"agentsvc-{self.instance_id}-"
        found = [Path(top) for top, *_ in os.walk(_GROUPS) if f"/{name}" in top]
        return sorted(found, reverse=True)

    def mounts(self) -> list[str]:
        """Return what is mounted below its data directory."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        top = f"{self.data.path.resolve()}/"
        return [path for line in lines if (path := line.split()[4]).startswith(top)]

    def leftovers(self) -> list[str]:
        """Name every process, control group, mount and directory that sandboxes of it have."""
        return [
            *self.mounts(),
            *map(str, self.groups()),
            *(f"{one.pid} {command_line(one.pid)!r}" for one in self.processes()),
            *(
                str(path)
                for root in [*self.sandbox_dirs(), *self.temp_dirs()]
                for path in [root, *root.rglob("*")]
            ),
        ]

    def at_home(self, name: str) -> "HomeFile":
        """Return a file in the HOME of a sandbox; as a text it is how a command names it."""
        return HomeFile(self.data.backends / "process", name)

    def database_bytes(self) -> bytes:
        """Return all that is on disk of the database."""
        return b"".join(
            path.read_bytes() for path in self.data.path.glob(f"{self.data.database.name}*")
        )

    @property
    def instance_id(self) -> str:
        """Return what its sandboxes are labelled with."""
        # A server that never came so far has no sandboxes, and this name is nobody's.
        file = self.data.instance_id
        return file.read_text().strip() if file.exists() else "none"

    def _said_url(self, known: int) -> str:
        with self._log.open("rb") as log:
            log.seek(known)
            said = log.read().decode(errors="replace")
        found = _READY.search(said)
        assert found or self._process is None or self._process.poll() is None, said[-2000:]
        return found[1] if found else ""

    def _run(self, command: list[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self._make_environment(),
            start_new_session=True,
        )

    def _make_environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("AGENTSVC_")}
        return {
            **kept,
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "AGENTSVC_BOOTSTRAP_KEY": self.key.reveal(),
            # To load one takes as long as one plain start.
            "AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "false",
            **self._environment,
        }

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return await asyncio.to_thread(self._process.wait, PATIENCE)

    async def _remove_by_force(self) -> None:
        while found := self.processes():
            for process in found:
                send(process, signal.SIGKILL)
            await asyncio.sleep(0.05)
        for group in self.groups():
            await eventually(partial(_is_removed, group), f"{group} is empty")
        for mounted in self.mounts():
            await asyncio.to_thread(subprocess.run, ["umount", "--lazy", mounted], check=True)
        for path in [*self.sandbox_dirs(), *self.temp_dirs()]:
            await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(path)], check=True)


async def _delete_all(client: LiveClient) -> None:
    for _ in range(10):
        page = (await client.get("/api/v1/sandboxes/search")).json()
        if not page["items"]:
            return
        paths = [f"/api/v1/sandboxes/{sandbox['id']}" for sandbox in page["items"]]
        # Many at once may take longer than anybody waits, and what is left is looked for again.
        await asyncio.gather(*map(client.delete, paths), return_exceptions=True)


def _is_removed(group: Path) -> bool:
    # Who has ended may not have left it yet.
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


class HomeFile:
    """What a command in any sandbox has written to its HOME under a name of its own."""

    def __init__(self, sandboxes: Path, name: str) -> None:
        self._sandboxes = sandboxes
        self._name = name

    def __str__(self) -> str:
        return f"$HOME/{self._name}"

    @property
    def path(self) -> Path:
        """Where it is; a path that does not exist as long as nobody has written it."""
        found = sorted(self._sandboxes.glob(f"*/home/{self._name}"))
        return found[0] if found else self._sandboxes / "nowhere" / self._name

    def exists(self) -> bool:
        return self.path.exists()

    def read_text(self) -> str:
        return self.path.read_text()


def command_line(pid: int) -> bytes:
    """Return a process's arguments, or nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def size(file: Path | HomeFile) -> int:
    """Return how many bytes a command has written to a file so far."""
    path = file.path if isinstance(file, HomeFile) else file
    return path.stat().st_size if path.exists() else 0


async def eventually[T](look: Callable[[], T], what: str, *, time_limit: float = PATIENCE) -> T:
    """Return what is seen as soon as it is anything."""
    deadline = monotonic() + time_limit
    while not (found := look()):
        assert monotonic() < deadline, f"this did not come true in {time_limit} s: {what}"
        await asyncio.sleep(0.02)
    return found


def secret(name: str) -> Secret:
    """Return a secret that is found wherever it should not be."""
    return new_key(f"{name}_")


def _is_agent_server(command: bytes) -> bool:
    # A fork shows the arguments of the fork server.
    return b"openhands.agent_server" in command.split(b"\0") or b"process.programs.warm" in command
