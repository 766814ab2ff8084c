"""An SSH tunnel to an engine on another machine, by the system's own `ssh`.

It uses the operator's keys, agent, known hosts and `~/.ssh/config`, never prompts, and passes none
of this process's environment to the other machine.
"""

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentsvc.base import BackendUnavailable

_REMOTE_SOCKET: Final = "/var/run/docker.sock"
_OPTIONS: Final = (
    *("-N", "-T", "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
    # Nobody reads its stderr while it runs: messages about refused connections would fill the pipe
    # and block it.
    *("-o", "LogLevel=ERROR"),
    *("-o", "StreamLocalBindUnlink=yes", "-o", "ControlMaster=no", "-o", "ControlPath=none"),
)
_POLL_SECONDS: Final = 0.05
_KEPT: Final = ("PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK")


class Tunnel:
    """One `ssh` process that forwards connections to a remote engine's socket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_down(self) -> bool:
        """Whether it has ended, so that another one is needed."""
        return self._process is None or self._process.returncode is not None

    async def open(self, time_limit: float) -> str:
        """Start it and return the path of the local socket."""
        # A directory of mode 0700 with a short name: a socket's path has at most 107 bytes.
        self._directory = tempfile.TemporaryDirectory(prefix="agentsvc-ssh-")
        path, why = Path(self._directory.name) / "s", ""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *arguments(self._url, path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
            )
            async with asyncio.timeout(time_limit):
                # ssh does not report when its local socket exists.
                while not path.exists() and not self.is_down:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
        except FileNotFoundError as exc:
            raise BackendUnavailable("This machine has no `ssh` program") from exc
        except TimeoutError as exc:
            raise BackendUnavailable("The engine's machine did not respond by SSH in time") from exc
        finally:
            if not path.exists():
                why = await self.close()
        if not path.exists():
            raise BackendUnavailable("The engine's machine cannot be reached by SSH", detail=why)
        return str(path)

    async def close(self) -> str:
        """End it and return its error output."""
        process, self._process = self._process, None
        output = b""
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            _, output = await process.communicate()
        if self._directory is not None:
            self._directory.cleanup()
        return output.decode(errors="replace").strip()


def arguments(url: str, path: Path) -> list[str]:
    """Return the command line of a tunnel with its local socket at `path`."""
    target = urlsplit(url)
    port = ["-p", str(target.port)] if target.port else []
    user = ["-l", target.username] if target.username else []
    far = target.path if target.path not in ("", "/") else _REMOTE_SOCKET
    return ["ssh", *_OPTIONS, *port, *user, "-L", f"{path}:{far}", "--", target.hostname or ""]
