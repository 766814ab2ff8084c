"""Another server, a process of its own, on which the backends of the `remote` plugin put sandboxes."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from process.tree import marks, send, snapshot

from agentsvc.base.values import Secret, monotonic, new_key
from agentsvc.config.data_directory import DataDirectory
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD
from tests.service import Client

PATIENCE = 60.0
_READY = re.compile(rb"is ready: (\S+)")
_COMMAND = msgspec.json.encode(["{python}", "-I", "-c", WORKLOAD]).decode()

CONFIG = f"""
[sandboxes]
sweep_seconds = 0.2
call_seconds = 10

[runtime_api]
enabled = true

[specs.web]
command = {_COMMAND}
env = {{ KIT_PORT = "{{port.web}}" }}
ports = [{{ name = "web" }}]

[specs.agent]
command = {_COMMAND}
env = {{ KIT_PORT = "{{port.agent}}" }}
ports = [{{ name = "agent" }}]
"""
"""The kit's workload as two specs: V1 tells every port, the runtime API knows the agent's."""

KINDS = PluginHost.load().backend_types()
"""The backends there are, found and loaded as an operator's server does it."""


class FarServer:
    """A server on loopback with its own data; it can be ended, frozen and started again."""

    def __init__(self, directory: Path, config: str = CONFIG) -> None:
        self.data = DataDirectory(path=directory / "data")
        self.key = new_key("asvc_")
        self.log = directory / "server.log"
        self._config = directory / "config.toml"
        self._config.write_text(config)
        with socket.socket() as trial:
            trial.bind(("127.0.0.1", 0))
            self.port: int = trial.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def config_of(self, name: str, **fields: Any) -> msgspec.Struct:
        """Return the table of a backend that uses this server."""
        path = {"remote": "/runtime", "agentsvc": ""}[name]
        values = {"url": self.url + path, "api_key": self.key.reveal(), **fields}
        return msgspec.convert(values, KINDS[name].Config)

    async def start(self) -> None:
        """Start the server and wait until it is ready."""
        command = (sys.executable, "-m", "agentsvc", "serve", "--port", str(self.port))
        kept = {name: text for name, text in os.environ.items() if not name.startswith("AGENTSVC_")}
        with self.log.open("ab") as log:
            known = log.tell()
            self._process = await asyncio.to_thread(
                subprocess.Popen,
                [*command, "--data-dir", str(self.data.path), "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, "AGENTSVC_BOOTSTRAP_KEY": self.key.reveal()},
                start_new_session=True,
            )
        end = monotonic() + PATIENCE
        while not _READY.search(self.log.read_bytes()[known:]):
            text = self.log.read_text()
            assert self._process.poll() is None, text
            assert monotonic() < end, text
            await asyncio.sleep(0.02)

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server, as a power cut would if not asked otherwise; sandboxes go on."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            await asyncio.to_thread(process.wait, PATIENCE)

    def freeze(self, *, is_frozen: bool) -> None:
        """Have the server take connections and not answer, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def client(self, key: Secret | None = None) -> Client:
        """Return a client of its V1 API."""
        return Client(self.url, (key or self.key).reveal(), patience=PATIENCE)

    async def close(self) -> None:
        """End the server and whatever its sandboxes run; fails if there was any such thing."""
        await self.end(signal.SIGTERM)
        left = self._sandbox_processes()
        for pid in left:
            process = snapshot().get(pid)
            if process is not None:
                send(process, signal.SIGKILL)
        assert left == [], "sandboxes were left at the other server"

    def _sandbox_processes(self) -> list[int]:
        file = self.data.instance_id
        mark = f"{file.read_text().strip()}/" if file.exists() else "none/"
        return [
            pid
            for pid, process in snapshot().items()
            if process.state not in ("Z", "X") and any(one.startswith(mark) for one in marks(pid))
        ]
