"""Builds bubblewrap's arguments for a process sandbox, and checks that bubblewrap works here.

Everything is shown where it is outside, so that paths mean the same in all sandboxes, held or not;
what is not listed here does not exist inside. All functions but `arguments` block for a moment.
"""

import base64
import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.plugin import PACKAGE_DIR, Network

from . import seccomp, uplink
from .files import ChildFiles
from .programs.spaces import INSIDE
from .tree import MARK

DOORS: Final = Path("/run/agentsvc")
"""Where a sandbox without a network of the machine's finds the way out."""

TEMP: Final = "/tmp"  # noqa: S108  # the sandbox's own
"""A sandbox's TMPDIR."""

HOME: Final = "/home/sandbox"
"""A sandbox's home. It is the same in all, so that what is loaded before a fork may keep paths in it."""

WORKSPACE: Final = "/workspace/project"
"""Where the agent works: the same in all, so that files which are copied may name each other by paths."""

_PROBE_SECONDS: Final = 20.0
_TRIAL: Final = ".trial-"
_INSTALLED: Final = ("stdlib", "purelib", "platlib")
_FOR_ALL: Final = 0o005
_SYSTEM: Final = Path("/usr")
_SYSTEM_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC: Final = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "chromium",
    "chromium.d",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "environment.d",
    "fonts",
    "gai.conf",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mailcap",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "pki/tls/openssl.d",
    "profile",
    "profile.d",
    "protocols",
    "resolv.conf",
    "services",
    "shells",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xdg",
)
"""Of the machine's configuration only what programs need that anybody may read: what runs here for
root reads all that is root's, and beside certificates there may be their keys."""

_NAMESPACE_SETTINGS: Final = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Settings of the kernel that may forbid user namespaces: the value that does, and one that does not."""

_NOT_ALONE: Final = "too much would be seen: {path} holds {inner}"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox sees."""

    mark: str
    writable: tuple[Path, ...]
    """Shown where they are."""
    temp: Path | None
    """Shown as /tmp; None for one that is not on a disk."""
    home: Path | None
    """Shown as the home."""
    workspace: Path | None = None
    """Shown as `WORKSPACE`, too."""
    network: Network = Network.OPEN
    has_own_network: bool = False
    """Whether it has one of its own although that is open."""
    has_resolver: bool = False
    """Whether names are asked for in that network."""
    doors: Path | None = None
    """The directory of the sockets that lead out, if the sandbox has no other network."""
    readable: tuple[Path, ...] = ()
    """Shown where they are, and cannot be written to."""
    user: int = 0
    """Who it is outside; 0 for whoever starts it."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether bubblewrap works here."""

    program: str = ""
    """Empty if it does not."""
    reason: str = ""
    """Why it does not."""
    remedy: str = ""
    readable: tuple[Path, ...] = ()
    """What every sandbox sees besides the system."""
    shared: str = ""
    """Why no sandbox can have a user of its own, if that was to be found out."""


def find(hidden: Path, more: tuple[Path, ...] = (), *, user: int = 0) -> Probe:
    """Find bubblewrap and try it; `hidden` is a directory that no sandbox may see as a whole.

    With a user, it is first tried as that one.
    """
    program = shutil.which("bwrap")
    if sys.platform != "linux":
        return Probe(reason="this is not Linux", remedy="use a container engine")
    if program is None:
        return Probe(reason="bubblewrap is not installed", remedy="apt install bubblewrap")
    readable = (*environment(), *more)
    if hidden.resolve().is_relative_to(_SYSTEM):
        return Probe(
            reason=_NOT_ALONE.format(path=_SYSTEM, inner=hidden),
            remedy="move the data directory to somewhere else",
        )
    for path in readable:
        for inner in (hidden, hidden.resolve(), *_homes()):
            if inner.is_relative_to(path):
                return Probe(
                    reason=_NOT_ALONE.format(path=path, inner=inner),
                    remedy="install the server into a virtual environment of its own",
                )
    shared = _try_apart(program, readable, hidden, user) if user else ""
    reason = _try(program, readable) if shared or not user else ""
    if reason:
        return Probe(
            reason=f"bubblewrap does not work: {reason}",
            remedy=_namespace_remedy(),
        )
    return Probe(program=program, readable=readable, shared=shared)


def _homes() -> list[Path]:
    """Return the home directory of this user, if the system knows one."""
    try:
        return [Path.home()]
    except RuntimeError:
        return []


def _namespace_remedy() -> str:
    """Return which setting of the kernel forbids user namespaces, as far as that can be seen."""
    for name, forbidding, allowing in _NAMESPACE_SETTINGS:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbidding:
                return (
                    f"user namespaces are forbidden here, allow them: sysctl -w {name}={allowing}"
                )
    return "let this user make user namespaces; in a container, its seccomp profile may forbid them"


def forget_trials(hidden: Path) -> None:
    """Remove what trials have left whose process was killed, unless one may be running now."""
    with _opened(hidden) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody tries now, or directories have no locks here
            return
        for trial in hidden.glob(f"{_TRIAL}*"):
            # What ran in it may outlive whoever tried for a moment, and makes one file.
            shutil.rmtree(trial, ignore_errors=True)
            shutil.rmtree(trial, ignore_errors=True)


def environment() -> tuple[Path, ...]:
    """Return the directories of the Python that runs this server, which runs the agents, too."""
    found = [Path(sys.prefix), Path(sys.base_prefix)]
    # An interpreter may be a link to a link; each must be there.
    hop = Path(sys.executable)
    while hop.is_symlink():
        hop = Path(os.path.normpath(hop.parent / hop.readlink()))
        found += [hop.parent.parent] if hop.parent.name == "bin" else []
    found += [path.resolve() for path in found]
    # With an editable installation the server and this plugin are somewhere else.
    found += [PACKAGE_DIR, Path(__file__).parent]
    alone: list[Path] = []
    for path in dict.fromkeys(found):
        if not any(path.is_relative_to(one) for one in (Path("/usr"), *alone)):
            alone.append(path)
    return tuple(alone)


def running(name: str) -> list[str]:
    """Return the command that runs one of the programs, with the standard library alone."""
    return [sys.executable, "-I", "-S", "-c", code_of(name)]


def code_of(name: str) -> str:
    """Return the Python that runs one of the programs, imported without the `__init__` of this plugin."""
    packages = {__package__.partition(".")[0]: [], __package__: [str(Path(__file__).parent)]}
    return (
        "import sys\n"
        f"for name, path in {packages!r}.items():\n"
        "    sys.modules[name] = type(sys)(name)\n"
        "    sys.modules[name].__path__ = path\n"
        f"from {__package__}.programs.{name} import main\n"
        "main()"
    )


def orders(program: str, view: View) -> dict[str, object]:
    """Return what the shim needs to start bubblewrap; an argument `@NAME` is that data's file."""
    return {
        "program": program,
        "user": view.user,
        "arguments": arguments(view),
        "data": {name: base64.b64encode(part).decode() for name, part in data(view).items()},
    }


def data(view: View) -> dict[str, bytes]:
    """Return the files that arguments name: who there is inside, and the filter if there is one."""
    found = _files(INSIDE, seccomp.compile_filter(platform.machine()))
    return {**found, **({"resolver": _resolver()} if view.has_resolver else {})}


def arguments(view: View) -> list[str]:
    """Return bubblewrap's arguments without the command."""
    # A user of its own has namespaces of its own, which whoever starts it names.
    made = [] if view.user else ["--unshare-user"]
    made += ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    made += ["--unshare-cgroup-try", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
    if view.has_own_network or view.network is not Network.OPEN:
        made.append("--unshare-net")
    made += ["--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox"]
    made += _system(has_resolver=view.has_resolver)
    # What runs here for root is still root to the kernel's own settings in /proc/sys.
    made += ["--proc", "/proc", "--remount-ro", "/proc"]
    made += ["--dev", "/dev", "--dir", "/run", "--dir", "/var"]
    made += ["--bind", str(view.temp), TEMP] if view.temp else ["--tmpfs", TEMP]
    made += ["--symlink", f"..{TEMP}", "/var/tmp"]  # noqa: S108  # the sandbox's own
    for path in view.readable:
        made += ["--ro-bind", str(path), str(path)]
    for path in view.writable:
        made += ["--bind", str(path), str(path)]
    if view.home is not None:
        made += ["--bind", str(view.home), HOME]
    if view.workspace is not None:
        made += ["--bind", str(view.workspace), WORKSPACE]
    if view.doors is not None:
        made += ["--ro-bind", str(view.doors), str(DOORS)]
    made += ["--remount-ro", "/", "--chdir", "/"]
    if platform.machine() in seccomp.MACHINES:
        made += ["--seccomp", "@seccomp"]
    return [*made, "--setenv", MARK, view.mark]


def can_show_workspace(shown: Iterable[Path]) -> bool:
    """Say whether nothing else is shown where `WORKSPACE` is, such as a data directory below it."""
    folder = Path(WORKSPACE)
    return not any(one.is_relative_to(folder) or folder.is_relative_to(one) for one in shown)


def fork_server_files(user: int) -> dict[str, bytes]:
    """Return the files that `fork_server_arguments` name; 0 is for the server's own user."""
    code = seccomp.compile_filter(platform.machine(), may_join=True, in_parts=not user)
    return _files(user or INSIDE, code)


def fork_server_arguments(
    readable: tuple[Path, ...], *, shares_network: bool, has_own_user: bool
) -> list[str]:
    """Return bubblewrap's arguments for the fork server, without the command.

    With a user of its own it is in the server's user namespace, where it has no rights; without, it
    is in one around those of sandboxes. It is in the server's pid namespace: the kernel lets nobody
    join a sandbox's who is in another one. Of /proc it sees itself alone.
    """
    made = ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    made += [] if shares_network else ["--unshare-net"]
    made += ["--cap-drop", "ALL"]
    if has_own_user:
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            made += ["--cap-add", name]
    else:
        made += ["--unshare-user", "--uid", str(INSIDE), "--gid", str(INSIDE)]
    # Before what is made in it: the server may be installed there.
    made += ["--perms", "1777", "--tmpfs", TEMP, "--perms", "0755", "--dir", "/home"]
    made += ["--perms", "1777", "--tmpfs", HOME]
    shown = {parent: None for path in readable for parent in reversed(path.parents)}
    # Directories that are made on the way to others are for root alone.
    for path in (*filter(lambda one: one != Path("/"), shown), Path("/etc"), Path("/proc")):
        made += ["--perms", "0755", "--dir", str(path)]
    made += ["--hostname", "sandbox", *_system(has_resolver=False)]
    made += ["--ro-bind", "/proc/self", "/proc/self", "--dev", "/dev", "--dir", "/run"]
    made += ["--dir", "/var", "--symlink", f"..{TEMP}", "/var/tmp"]  # noqa: S108  # its own
    for path in readable:
        made += ["--ro-bind", str(path), str(path)]
    # There is none for processors without a filter.
    return [*made, "--remount-ro", "/", "--chdir", "/", "--seccomp", "@seccomp"]


def _system(*, has_resolver: bool) -> list[str]:
    made = ["--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM_LINKS:
        path = Path("/", name)
        if path.is_symlink():
            made += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            made += ["--ro-bind", str(path), str(path)]
    own = {"passwd": "@passwd", "group": "@group"}
    if has_resolver:
        own["resolv.conf"] = "@resolver"
    for name in _ETC:
        if name not in own:
            made += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name, part in own.items():
        made += ["--ro-bind-data", part, f"/etc/{name}"]
    return made


def _resolver() -> bytes:
    try:
        return uplink.resolv_conf(Path("/etc/resolv.conf").read_text(errors="replace"))
    except OSError:
        return uplink.resolv_conf("")


def _files(user: int, code: bytes | None) -> dict[str, bytes]:
    """Return who there is, where programs look for that, and the filter if there is one."""
    passwd = (
        "root:x:0:0:root:/root:/usr/sbin/nologin",
        f"agent:x:{user}:{user}:agent:{HOME}:/bin/bash",
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin",
        "",
    )
    return {
        "passwd": "\n".join(passwd).encode(),
        "group": f"root:x:0:\nagent:x:{user}:\nnogroup:x:65534:\n".encode(),
        **({"seccomp": code} if code else {}),
    }


def _try_apart(program: str, readable: tuple[Path, ...], hidden: Path, user: int) -> str:
    """Return why that user cannot be who a sandbox is outside, or nothing."""
    for path in (*readable, *map(Path, {sysconfig.get_path(name) for name in _INSTALLED})):
        if path.is_dir() and path.stat().st_mode & _FOR_ALL != _FOR_ALL:
            return f"not everybody may read {path}"
    try:
        with trial(hidden) as path:
            os.chown(path, user, user)
            return _try(program, readable, writable=path, user=user)
    except OSError as exc:
        return f"files cannot be given to user {user}: {exc.strerror}"


@contextlib.contextmanager
def trial(hidden: Path) -> Iterator[Path]:
    """Make a directory that `forget_trials` leaves alone as long as this process is there."""
    with _opened(hidden) as descriptor:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=hidden) as name:
            yield Path(name)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try(
    program: str, readable: tuple[Path, ...], *, writable: Path | None = None, user: int = 0
) -> str:
    """Return why a Python does not start inside, or nothing if it does."""
    view = View(
        mark="trial",
        writable=(writable,) if writable else (),
        temp=None,
        home=None,
        network=Network.NONE,
        readable=readable,
        user=user,
    )
    before = [*running("spaces"), str(user), program] if user else [program, "--args"]
    task = f"open({str(writable / 'file')!r}, 'x')" if writable else "pass"
    with ChildFiles() as files:
        for name, part in data(view).items():
            files.add(name, part)
        inner_file = files.add_arguments(arguments(view))
        command = [*before, str(inner_file), sys.executable, "-I", "-S", "-c", task]
        return try_program(command, passed=files.numbers())


def try_program(command: Sequence[str], *, told: bytes = b"", passed: Sequence[int] = ()) -> str:
    """Run a program that hears this; return the last line of what went wrong, or nothing."""
    try:
        ended = subprocess.run(  # noqa: S603  # a program of ours, or one that the operator has installed
            command,
            env={},
            input=told,
            capture_output=True,
            pass_fds=passed,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    said = ended.stderr.decode(errors="replace").strip()
    return said.rpartition("\n")[2] or f"it exits with {ended.returncode}" * bool(ended.returncode)
