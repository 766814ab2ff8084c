"""Docker and Podman without root, of the tests' own: each belongs to a user that is nobody else.

The user is known in the engine's own view of this machine only, with the range of users that its
containers have. Whatever runs as one of these is ended with the last user of the engine, and its
files go with it; networks, mounts and rules are in namespaces that end by themselves.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.live import engines, podman
from tests.live.engines import EngineFailed, Lease

VARIABLE: Final = "TEST_ROOTLESS"
"""Set where what takes minutes is to be run, too."""

_ROOT: Final = Path(__file__).parents[2]
_BEGIN: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from tests.live.rootless import main; main()"
)
_SCRIPTS: Final = ("dockerd-rootless.sh", "/usr/share/docker.io/contrib/dockerd-rootless.sh")
_NEEDED: Final = {
    "docker": ("dockerd", "rootlesskit", "slirp4netns", "newuidmap"),
    "podman": ("podman", "slirp4netns", "newuidmap"),
}
_TUN: Final = Path("/dev/net/tun")
_CLONE_NEWNS: Final = 0x00020000
_NOBODY: Final = 65534
_FIRST: Final = 100_000_000
_COUNT: Final = 65536
_RANGES: Final = 20_000
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class RootlessLease(Lease):
    """A share in an engine without root; what it keeps is elsewhere, below a short path."""

    def __init__(self, directory: Path, kind: str) -> None:
        super().__init__(directory)
        self._kind = kind

    @property
    def socket(self) -> Path:
        note = self.directory / "place"
        place = Path(note.read_text()) if note.exists() else self.directory
        return _socket(place, self._kind)

    def keepers_command(self) -> list[str]:
        return [
            *(sys.executable, "-c", _BEGIN),
            *(str(_ROOT), "keep", self._kind, str(self.directory)),
        ]


class _Keeper:
    """Runs an engine as a user of its own until nobody holds a share in it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.first = _FIRST + os.getpid() % _RANGES * _COUNT
        # The path of a socket ends at 107 bytes.
        self.place = Path(tempfile.mkdtemp(prefix="rootless-", dir="/tmp"))
        self._engine: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            self._engine = subprocess.Popen(
                [
                    *(sys.executable, "-c", _BEGIN, str(_ROOT)),
                    *("be", self.kind, str(self.place), str(self.first)),
                ],
                stdin=subprocess.DEVNULL,
            )
            engines.wait(self._is_up, engines.START_SECONDS, "the engine without root answers")
            (self.directory / "place").write_text(str(self.place))
            with engines.last_user_gone(self.directory, lambda: None):
                self._remove()
        finally:
            self._remove()

    def _is_up(self) -> bool:
        assert self._engine is not None
        if self._engine.poll() is not None:
            raise EngineFailed(f"{self.kind} ended with code {self._engine.returncode}")
        return engines.answers(_socket(self.place, self.kind))

    def _remove(self) -> None:
        if not self.place.exists():
            return
        deadline = time.monotonic() + engines.STOP_SECONDS
        while found := _of_users(range(self.first, self.first + _COUNT)):
            if time.monotonic() > deadline:
                raise EngineFailed(f"these processes do not end: {found}")
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        if self._engine is not None:
            self._engine.kill()
            self._engine.wait()
        shutil.rmtree(self.place, ignore_errors=True)
        if self.place.exists():
            print(f"something is left in {self.place}", flush=True)  # noqa: T201  # to the log
        shutil.rmtree(self.directory, ignore_errors=True)


def why_not(kind: str) -> str:
    """Say why this engine cannot be run here without root, or nothing if it can."""
    if os.geteuid() != 0:
        return "an engine without root gets a user of its own, which takes root in these tests"
    if kind == "podman" and (reason := podman.why_not()):
        return reason
    if lacking := [name for name in _NEEDED[kind] if engines.which(name) is None]:
        return f"{kind} without root needs what is not here: {', '.join(lacking)}"
    if kind == "docker" and _script() is None:
        return "there is no dockerd-rootless.sh here"
    if not _TUN.exists() or ~stat.S_IMODE(_TUN.stat().st_mode) & 0o006:
        return f"{_TUN} is not for everybody here, and networks without root need it"
    makes = subprocess.run(
        ["setpriv", f"--reuid={_NOBODY}", "--clear-groups", "unshare", "--user", "true"],
        capture_output=True,
        check=False,
    )
    return "" if makes.returncode == 0 else "an ordinary user may make no namespaces here"


def _be(kind: str, place: Path, first: int) -> None:
    """Become the user that an engine belongs to, and then the engine."""
    _know(place, first)
    home, run, passing = place / "home", place / "run", place / "passing"
    for directory in (home, run, passing):
        directory.mkdir(mode=0o700)
        os.chown(directory, first, first)
    place.chmod(0o711)
    environment = {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(run),
        "TMPDIR": str(passing),
        "PATH": _PATH,
        "USER": "asvc",
    }
    if kind == "podman":
        (place / "containers.conf").write_text(_config())
        (place / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
        environment |= {
            "CONTAINERS_CONF": str(place / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
        }
        service = f"unix://{_socket(place, kind)}"
        command = ["podman", "system", "service", "--time=0", service]
    else:
        command = [_script() or _SCRIPTS[0]]
    os.setgroups([])
    os.setresgid(first, first, first)
    os.setresuid(first, first, first)
    os.chdir(home)
    os.execvpe(command[0], command, environment)  # noqa: S606  # nothing of it is from outside


def _know(place: Path, first: int) -> None:
    """Have the user and its range known to this process and its children, and to nobody else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise EngineFailed(os.strerror(ctypes.get_errno()))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    ours = f"asvc:{first + 1}:{_COUNT - 1}\n"
    known = {
        "passwd": Path("/etc/passwd").read_text()
        + f"asvc:x:{first}:{first}::{place}/home:/bin/sh\n",
        "group": Path("/etc/group").read_text() + f"asvc:x:{first}:\n",
        "subuid": ours,
        "subgid": ours,
    }
    for name, text in known.items():
        (place / name).write_text(text)
        subprocess.run(["mount", "--bind", str(place / name), f"/etc/{name}"], check=True)


def _config() -> str:
    runtime = engines.which("runc") or engines.which("crun") or "runc"
    init = next(filter(None, map(engines.which, ("catatonit", "tini", "docker-init"))), None)
    return "\n".join(
        [
            "[network]",
            'network_backend = "netavark"',
            "[engine]",
            'cgroup_manager = "cgroupfs"',
            'events_logger = "file"',
            f'runtime = "{Path(runtime).name}"',
            *([f'init_path = "{init}"'] if init else []),
            "",
        ]
    )


def _script() -> str | None:
    return next(filter(None, map(engines.which, _SCRIPTS)), None)


def _socket(place: Path, kind: str) -> Path:
    return place / "run" / f"{kind}.sock"


def _of_users(users: range) -> list[int]:
    """Return the processes that run as one of these users."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and engines.is_alive(int(entry.name)):
            with contextlib.suppress(OSError):
                # Not the owner of the directory, which is root for some of them.
                lines = (entry / "status").read_text().splitlines()
                real = next(line.split()[1] for line in lines if line.startswith("Uid:"))
                found += [int(entry.name)] if int(real) in users else []
    return found


def main() -> None:
    """Be the keeper, or the engine."""
    verb, kind, *rest = sys.argv[1:]
    if verb == "keep":
        _Keeper(kind, Path(rest[0])).run()
    else:
        _be(kind, Path(rest[0]), int(rest[1]))
