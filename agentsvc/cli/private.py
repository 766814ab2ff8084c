"""A server for one command: `agentsvc serve` as a child process that keeps everything in one directory.

Its sandboxes are held by bubblewrap. Where that does not work an ordinary user's are confined by
Landlock, which keeps the directory out of their reach, and that is said; with neither it is not
started.
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
"""More than a server takes for what is being started as it is told to stop."""


def check_installed(what: str, hint: str) -> None:
    """Raise CommandFailed, saying what needs it, unless what runs in a sandbox is installed."""
    try:
        for name in _NEEDED:
            metadata.version(name)
    except metadata.PackageNotFoundError as exc:
        raise CommandFailed(
            f"{what} needs the package {exc.name}, which is not installed", hint
        ) from exc


class PrivateServer:
    """A server of its own for one command; `stop` leaves none of its processes behind."""

    def __init__(self, directory: Path, key: Secret, *, port: int) -> None:
        self._directory = directory
        self._key = key
        self._port = port
        self._log = directory / "server.log"
        self.key_file = directory / "key"
        """Holds the key, for its owner only."""
        self._process: subprocess.Popen[str] | None = None

    def start(self, isolation: MinimumIsolation) -> None:
        """Start the process; `read_url` tells when it answers.

        Its sandboxes are isolated at least so far; see `choose_isolation`.
        """
        command = [sys.executable, "-m", "agentsvc", "serve", "--host", "127.0.0.1"]
        command += ["--port", str(self._port), "--data-dir", str(self._directory / "data")]
        replace_private(self.key_file, self._key.reveal())
        with self._log.open("w") as log:
            # A session of its own, so that Ctrl-C reaches the command only, which then stops it.
            self._process = subprocess.Popen(  # noqa: S603  # every part of it is ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self._environment(isolation),
                start_new_session=True,
            )

    def last_log_lines(self) -> str:
        """Return the end of what it logged."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def stop(self) -> None:
        """Let it stop and delete its sandboxes; what does not go by itself is killed."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        kill_users_of(self._directory)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def read_url(self) -> str:
        """Return the URL at which it answers once it does; raises CommandFailed if it ends instead."""
        for line in (self._process and self._process.stdout) or ():
            if found := _READY.search(line):
                return found[1]
        raise CommandFailed("the server did not start")

    def _environment(self, isolation: MinimumIsolation) -> dict[str, str]:
        """Return this process's environment without anything that configures another server."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        return {
            **kept,
            BOOTSTRAP_KEY_FILE_VARIABLE: str(self.key_file),
            f"{PREFIX}SANDBOXES__ON_SHUTDOWN": "delete",
            f"{PREFIX}SANDBOXES__ISOLATION": isolation,
            # To load one takes as long as the one plain start that is wanted here.
            f"{PREFIX}BACKENDS__PROCESS__ZYGOTE": "false",
            "XDG_CONFIG_HOME": str(self._directory / "config"),
        }


async def choose_isolation(directory: Path) -> MinimumIsolation:
    """Return what the sandboxes of a server in this directory are held by, and say so if it is little.

    Raises CommandFailed, with what to install, where nothing holds them.
    """
    config = Config(backends={"process": {"zygote": False}})
    host = load_plugins(config)
    # What a backend logs of this is said here, in the words of this command.
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
            f"sandboxes cannot be isolated: {found.reason}, and as root nothing else holds them",
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


def kill_users_of(directory: Path) -> None:
    """Kill every process that works in a directory or was told of it in its environment.

    A last resort: a server that stopped as it should has left none.
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
