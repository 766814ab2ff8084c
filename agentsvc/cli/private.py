"""A private server for one command: `agentsvc serve` as a child process, with all data in one directory.

Its sandboxes are isolated by bubblewrap. If that is not available, and the user is not root, they are
isolated by Landlock, with a warning; with neither the server is not started.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

import click

from agentsvc.base import Secret, monotonic, replace_private
from agentsvc.cli import CommandFailed
from agentsvc.cli.plugins import load_plugins, opened
from agentsvc.config import BOOTSTRAP_KEY_FILE_VARIABLE, PREFIX, Config, MinimumIsolation
from agentsvc.plugin import PACKAGE, Isolation
from agentsvc.sandboxes import find_protections

_NEEDED: Final = ("openhands-agent-server", "openhands-tools")
_READY: Final = re.compile(r"is ready: (\S+)")
_LOG_LINES: Final = 15
_STOP_SECONDS: Final = 75.0
"""Longer than the shutdown of a server that has starts in progress."""


def check_installed(what: str, hint: str) -> None:
    """Raise CommandFailed, naming `what` needs it, unless the agent server is installed."""
    try:
        for name in _NEEDED:
            metadata.version(name)
    except metadata.PackageNotFoundError as exc:
        raise CommandFailed(
            f"{what} needs the package {exc.name}, which is not installed", hint
        ) from exc


class PrivateServer:
    """A private server for one command; `stop` leaves none of its processes behind."""

    def __init__(self, directory: Path, key: Secret, *, port: int) -> None:
        self._directory = directory
        self._key = key
        self._port = port
        self._log = directory / "server.log"
        self.key_file = directory / "key"
        """File with the API key, readable by its owner only."""
        self._process: subprocess.Popen[str] | None = None

    def start(self, isolation: MinimumIsolation) -> None:
        """Start the process with a minimum isolation; see `choose_isolation`.

        `read_url` waits until it is ready.
        """
        command = [sys.executable, "-m", "agentsvc", "serve", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--data-dir", str(self._directory / "data")]
        replace_private(self.key_file, self._key.reveal())
        with self._log.open("w") as log:
            # A new session, so that Ctrl-C reaches only the command, which then stops the server.
            self._process = subprocess.Popen(  # noqa: S603  # no part is user input
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(isolation),
                start_new_session=True,
            )

    def last_log_lines(self) -> str:
        """Return the last lines of its log."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def stop(self) -> None:
        """Stop it with its sandboxes; kill what does not stop by itself."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        kill_processes_using(self._directory)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def read_url(self) -> str:
        """Wait until it is ready and return its URL; raises CommandFailed if it exits instead."""
        for line in (self._process and self._process.stdout) or ():
            if found := _READY.search(line):
                return found[1]
        raise CommandFailed("the server did not start")

    def _environment(self, isolation: MinimumIsolation) -> dict[str, str]:
        """Return this process's environment without the configuration of another server."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        return {
            **kept,
            BOOTSTRAP_KEY_FILE_VARIABLE: str(self.key_file),
            f"{PREFIX}SANDBOXES__ON_SHUTDOWN": "delete",
            f"{PREFIX}SANDBOXES__ISOLATION": isolation,
            # Loading the fork server takes as long as the single start that is needed here.
            f"{PREFIX}BACKENDS__PROCESS__ZYGOTE": "false",
            "XDG_CONFIG_HOME": str(self._directory / "config"),
        }


async def choose_isolation(directory: Path) -> MinimumIsolation:
    """Return the minimum isolation of a server in this directory; warn if it is only Landlock.

    Raises CommandFailed, with what to install, if sandboxes cannot be isolated.
    """
    config = Config(backends={"process": {"zygote": False}})
    host = load_plugins(config)
    # Suppress the backends' log messages; the errors below replace them.
    logging.getLogger(PACKAGE).addHandler(logging.NullHandler())
    async with opened(host, config, within=directory) as registry:
        protections = find_protections(registry, config.sandboxes)
    if not protections:
        raise CommandFailed("sandboxes cannot be isolated: no backend can be opened")
    found = protections[0]
    if not found.is_below_default:
        return MinimumIsolation.DEFAULT
    if os.geteuid() == 0:
        raise CommandFailed(
            f"sandboxes cannot be isolated: {found.reason}, and root has no other isolation",
            found.remedy,
        )
    if found.isolation is not Isolation.LANDLOCK:
        raise CommandFailed(
            f"sandboxes cannot be isolated: {found.reason}, and this kernel has no Landlock",
            found.remedy,
        )
    text = (
        f"WARNING: {found.reason}. Landlock alone confines the agent: it cannot read this server's"
        " data or your files, but it sees your processes and uses this machine's network."
        f" For full isolation: {found.remedy}"
    )
    click.secho(text, err=True, bold=True)
    return MinimumIsolation.LANDLOCK


def kill_processes_using(directory: Path) -> None:
    """Kill every process with this working directory, or with the directory in its environment.

    A last resort: a server that stopped normally has left none.
    """
    deadline = monotonic() + 2
    while (found := _users_of(directory)) and monotonic() < deadline:
        for process_id in found:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(0.02)


def _users_of(directory: Path) -> list[int]:
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal()
        and int(process.name) != os.getpid()
        and _is_user(process, str(directory))
    ]


def _is_user(process: Path, directory: str) -> bool:
    try:
        works_there = f"{(process / 'cwd').readlink()}/".startswith(f"{directory}/")
        return works_there or directory.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
