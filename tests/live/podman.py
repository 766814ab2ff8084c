"""Podman of the tests' own, behind Docker's API, with images, networks and files that no other has.

As with the Docker engine, a keeper of its own removes all of it when its last user has ended,
however that came: containers and what watches them, networks, bridges, rules, mounts and files.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.live import engines
from tests.live.engines import EngineFailed, Lease

_ROOT: Final = Path(__file__).parents[2]
_BEGIN: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.live.podman import main; main()"
)
_NETAVARK: Final = ("/usr/lib/podman/netavark", "/usr/libexec/podman/netavark")
_TABLES: Final = (("iptables", "filter"), ("iptables", "nat"))
_CLEAN_SECONDS: Final = 60.0
_RAISING: Final = 24
"""The number of CAP_SYS_RESOURCE, without which nobody gets more than this process has."""

# Podman asks for more of some limits than a root without that capability may give.
_BOUNDED: Final = """#!/bin/sh
exec {python} -SE -c '
import json, os, resource, sys
argv, path = sys.argv[1:], ""
if "create" in argv:
    path = os.path.join(argv[argv.index("--bundle") + 1], "config.json")
elif "exec" in argv:
    path = argv[argv.index("--process") + 1]
if path:
    with open(path) as file:
        config = json.load(file)
    for limit in config.get("process", config).get("rlimits") or []:
        most = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if most != resource.RLIM_INFINITY:
            limit["hard"], limit["soft"] = min(limit["hard"], most), min(limit["soft"], most)
    with open(path, "w") as file:
        json.dump(config, file)
os.execv("{runtime}", ["{runtime}", *argv])
' "$@"
"""


class PodmanLease(Lease):
    """A share in the Podman of a directory; what it keeps is elsewhere, below a short path."""

    @property
    def socket(self) -> Path:
        note = self.directory / "place"
        return (Path(note.read_text()) if note.exists() else self.directory) / "podman.sock"

    def keepers_command(self) -> list[str]:
        return [
            *(sys.executable, "-c", _BEGIN),
            *(str(_ROOT), str(self.directory)),
        ]


class _Keeper:
    """Runs Podman's service until nobody holds a share in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # What runs containers has sockets in it, and the path of one ends at 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="podman-", dir="/tmp"))
        self._service: subprocess.Popen[bytes] | None = None
        self._before: dict[tuple[str, str], list[str]] = {}
        self._environment = {**os.environ, "CONTAINERS_CONF": str(self.place / "containers.conf")}

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        self._before = {table: engines.rules(*table) for table in _TABLES}
        try:
            (self.place / "containers.conf").write_text(_config(self.place))
            socket = self.place / "podman.sock"
            self._service = subprocess.Popen(
                [*self._podman(), "system", "service", "--time=0", f"unix://{socket}"],
                stdin=subprocess.DEVNULL,
                env=self._environment,
            )
            engines.wait(lambda: self._is_up(socket), engines.START_SECONDS, "Podman answers")
            (self.directory / "place").write_text(str(self.place))
            with engines.last_user_gone(self.directory, lambda: None):
                self._remove()
        finally:
            self._remove()

    def _is_up(self, socket: Path) -> bool:
        assert self._service is not None
        if self._service.poll() is not None:
            raise EngineFailed(f"podman ended with code {self._service.returncode}")
        return engines.answers(socket)

    def _podman(self) -> list[str]:
        place = self.place
        return [
            *("podman", "--root", f"{place}/root", "--runroot", f"{place}/run"),
            *("--tmpdir", str(place / "passing")),
        ]

    def _remove(self) -> None:
        if not self.place.exists():
            return
        bridges = [network.get("network_interface") for network in self._listed("network", "ls")]
        namespaces = self._namespaces()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._ask("rm", "--all", "--force", "--time=0", "--volumes")
        if self._service is not None:
            self._service.terminate()
            try:
                self._service.wait(engines.STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._service.kill()
                self._service.wait()
        engines.end_processes(self.place)
        for namespace in namespaces:
            if Path(namespace).exists():
                subprocess.run(["umount", "--lazy", namespace], check=False)
                Path(namespace).unlink(missing_ok=True)
        here = engines.links()
        engines.remove_links(name for name in bridges if name in here)
        engines.unmount(self.place)
        for table, before in self._before.items():
            engines.remove_rules(*table, before, of_podman=True)
        shutil.rmtree(self.place, ignore_errors=True)
        if self.place.exists():
            print(f"something is left in {self.place}", flush=True)  # noqa: T201  # to the log
        shutil.rmtree(self.directory, ignore_errors=True)

    def _namespaces(self) -> list[str]:
        """Return where the containers' networks are mounted."""
        names = [str(container["Id"]) for container in self._listed("ps", "--all")]
        found = self._listed("inspect", *names) if names else []
        keys = [(one.get("NetworkSettings") or {}).get("SandboxKey") for one in found]
        return [key for key in keys if key]

    def _listed(self, *command: str) -> list[dict[str, Any]]:
        """Return what Podman answers, or nothing where it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            return list(json.loads(self._ask(*command, "--format=json")) or [])
        return []

    def _ask(self, *command: str) -> bytes:
        return subprocess.run(
            [*self._podman(), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self._environment,
            timeout=_CLEAN_SECONDS,
            check=False,
        ).stdout


def why_not() -> str:
    """Say why Podman cannot be run here, or nothing if it can."""
    if os.geteuid() != 0:
        return "Podman with networks of its own is run by root only in these tests"
    if engines.which("podman") is None:
        return "there is no podman here: install podman, netavark and aardvark-dns"
    if not any(Path(path).exists() for path in _NETAVARK):
        return "Podman's networks are not here: install netavark and aardvark-dns"
    return ""


def carry_image(name: str, source: Path, target: Path) -> None:
    """Give one engine's image to another, both by their sockets, if it has none of that name."""
    if engines.ask(target, "GET", f"/images/{name}/json")[0] == http.client.OK:
        return
    with engines.download(source, f"/images/{name}/get") as archive:
        status, said = engines.ask(target, "POST", "/images/load", body=archive)
    if status != http.client.OK or b'"error"' in said:
        raise EngineFailed(f"the image cannot be loaded: {said.decode()[-500:]}")


def _config(place: Path) -> str:
    runtime = engines.which("runc") or engines.which("crun") or "runc"
    init = next(filter(None, map(engines.which, ("catatonit", "tini", "docker-init"))), None)
    name = Path(runtime).name
    return "\n".join(
        [
            "[network]",
            'network_backend = "netavark"',
            f'network_config_dir = "{place}/networks"',
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            'lock_type = "file"',
            f'volume_path = "{place}/volumes"',
            f'runtime = "{name}"',
            *([f'init_path = "{init}"'] if init else []),
            "[engine.runtimes]",
            f'{name} = ["{_bounded(place, runtime)}"]',
            "",
        ]
    )


def _bounded(place: Path, runtime: str) -> str:
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":\t" in line
    )
    if int(status["CapEff"], 16) >> _RAISING & 1:
        return runtime
    wrapper = place / Path(runtime).name
    wrapper.write_text(_BOUNDED.format(python=sys.executable, runtime=runtime))
    wrapper.chmod(0o755)
    return str(wrapper)


def main() -> None:
    """Be the keeper."""
    _Keeper(Path(sys.argv[1])).run()
