"""Published clients: installed from the package registries, then used by programs of their own.

A Python client gets a virtual environment that sees the packages of this one behind its own, so
that only what is newer or missing is installed. Nothing is installed into this environment.
"""

import asyncio
import contextlib
import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from tests.live.client import PATIENCE

PROGRAMS = Path(__file__).parent / "programs"
_RUN_SECONDS = 3 * PATIENCE
_INSTALL_SECONDS = 400
_TRIES = 3


takes_minutes = pytest.mark.skipif(
    os.environ.get("TEST_CLIENTS") != "all", reason="it takes minutes; `poe live-clients` runs it"
)


class NotInstalled(Exception):
    """A registry, or a tool that installs from it, did not do its part."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """An installed client: how a program that uses it is started, and what it is."""

    command: tuple[str, ...]
    programs: Path
    versions: str
    home: Path

    async def run(
        self, program: str, *, time_limit: float = _RUN_SECONDS, **task: Any
    ) -> dict[str, Any]:
        """Run a program: it gets the task as JSON and reports what it saw as JSON, at its end."""
        command = (*self.command, str(self.programs / program))
        output = await self.call(*command, task=task, time_limit=time_limit)
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report

    async def call(
        self,
        *command: str,
        task: Mapping[str, Any] | None = None,
        time_limit: float = _RUN_SECONDS,
    ) -> str:
        """Run any command and return what it printed; fails with all of it if the command does.

        A command that takes too long is ended, which is a failure, too.
        """
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.home,
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=errors,
            )
            try:
                async with asyncio.timeout(time_limit):
                    await process.communicate(json.dumps(task or {}).encode())
            except TimeoutError:
                pass
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            said = [_read(output), _read(errors)]
        text = "\n".join(said)
        assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{text}"
        return said[0]

    def _environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")}
        return {
            **kept,
            "HOME": str(self.home),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            # Whoever opens a browser gets this instead.
            "BROWSER": "true",
            "COLUMNS": "200",
        }


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def install_python(directory: Path, *packages: str, with_needed: bool = True) -> Client:
    """Install the newest versions of Python packages that fit together, unless it is done.

    Without what they need they get that from here.
    """
    python = directory / "bin" / "python"
    with _locked(directory):
        if not (directory / "installed").exists():
            _call(sys.executable, "-m", "venv", "--without-pip", "--clear", str(directory))
            paths = sysconfig.get_paths("venv", vars={"base": str(directory)})
            ours = sysconfig.get_paths()
            (Path(paths["purelib"]) / "ours.pth").write_text(
                f"{ours['purelib']}\n{ours['platlib']}\n"
            )
            depth = () if with_needed else ("--no-deps",)
            options = ("--quiet", "--no-compile", "--upgrade", *depth)
            _call(str(python), "-m", "pip", "install", *options, *packages)
            (directory / "installed").touch()
    home = directory / "home"
    home.mkdir(exist_ok=True)
    return Client(
        command=(str(python),),
        programs=PROGRAMS,
        versions=_python_versions(directory, packages),
        home=home,
    )


def install_node(directory: Path, *packages: str) -> Client:
    """Install JavaScript packages, the newest ones unless they name a version, and put the programs beside them."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise NotInstalled("node and npm are not installed")
    options = ("--no-audit", "--no-fund", "--ignore-scripts")
    with _locked(directory):
        if not (directory / "installed").exists():
            wanted = (one if "@" in one[1:] else f"{one}@latest" for one in packages)
            # By this it knows where it is; told by --prefix, it would not read the machine's configuration.
            (directory / "package.json").write_text("{}")
            # Now and then it has all files and does not end; what it has it does not fetch again.
            _call(npm, "install", *options, *wanted, tries=_TRIES, directory=directory)
            for program in PROGRAMS.glob("*.mjs"):
                shutil.copy(program, directory)
            (directory / "installed").touch()
    names = [one[0] + one[1:].partition("@")[0] for one in packages]
    versions = [
        f"{name} {json.loads((directory / 'node_modules' / name / 'package.json').read_text())['version']}"
        for name in names
    ]
    return Client(command=(node,), programs=directory, versions=", ".join(versions), home=directory)


def _python_versions(directory: Path, packages: tuple[str, ...]) -> str:
    paths = sysconfig.get_paths("venv", vars={"base": str(directory)})
    path = [paths["purelib"], sysconfig.get_paths()["purelib"]]
    names = [re.split(r"[<>=\[]", package)[0] for package in packages]
    found = [next(iter(importlib.metadata.distributions(name=name, path=path))) for name in names]
    return ", ".join(f"{one.name} {one.version}" for one in found)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let only one of the processes that run tests work on a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _call(*command: str, tries: int = 1, directory: Path | None = None) -> None:
    """Run a command, anew where it takes more than its share of the time."""
    for _ in range(tries):
        with subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said = process.communicate(timeout=_INSTALL_SECONDS / tries)[1]
            except subprocess.TimeoutExpired:
                # What it has started holds on to its output, too.
                os.killpg(process.pid, signal.SIGKILL)
                continue
        if process.returncode == 0:
            return
        raise NotInstalled(f"{' '.join(command)} failed: {said[-2000:]}")
    raise NotInstalled(f"{' '.join(command)} did not end in {_INSTALL_SECONDS} s")
