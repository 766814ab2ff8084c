"""Builds bubblewrap's arguments for a process sandbox, and checks that bubblewrap works here.

Every path is mounted at the path it has outside, so that paths mean the same in all sandboxes,
isolated or not; a path that is not listed here does not exist inside. All functions but `arguments`
block briefly.
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
"""Directory with the proxy sockets, in a sandbox without the machine's network."""

TEMP: Final = "/tmp"  # noqa: S108  # the sandbox's own
"""A sandbox's TMPDIR."""

HOME: Final = "/home/sandbox"
"""A sandbox's home. It is the same in all, so that modules loaded before a fork may keep paths in
it."""

WORKSPACE: Final = "/workspace/project"
"""The agent's workspace: the same in all, so that copied files may refer to each other by path."""

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
"""The only files of the machine's /etc that sandboxes see: those that programs need and anybody may
read. A sandbox that runs as root outside could read all of root's files, and the directories with
certificates may hold their private keys, too."""

_NAMESPACE_SETTINGS: Final = (
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
"""Kernel settings that may forbid user namespaces: name, forbidding value, permitting value."""

_EXPOSED: Final = "sandboxes would see too much: {path} contains {inner}"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The file system, network and user of one sandbox."""

    mark: str
    writable: tuple[Path, ...]
    """Mounted at the path they have outside."""
    temp: Path | None
    """Mounted as /tmp; None for a tmpfs."""
    home: Path | None
    """Mounted as the home."""
    workspace: Path | None = None
    """Also mounted as `WORKSPACE`."""
    network: Network = Network.OPEN
    has_own_network: bool = False
    """Whether an open sandbox has a network namespace of its own."""
    has_resolver: bool = False
    """Whether that network has a DNS resolver."""
    doors: Path | None = None
    """The directory of the proxy sockets, if the sandbox has no other network."""
    readable: tuple[Path, ...] = ()
    """Mounted read-only at the path they have outside."""
    user: int = 0
    """The sandbox's user id outside; 0 for the user of the process that starts it."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether bubblewrap works here, and if not, why."""

    program: str = ""
    """Path of bubblewrap; empty if it does not work."""
    reason: str = ""
    """Why it does not work."""
    remedy: str = ""
    readable: tuple[Path, ...] = ()
    """Paths that every sandbox sees besides the system."""
    shared: str = ""
    """Why sandboxes cannot have users of their own; empty if they can, or if that was not tried."""


def find(hidden: Path, more: tuple[Path, ...] = (), *, user: int = 0) -> Probe:
    """Find bubblewrap and try it; `hidden` is a directory that no sandbox may see as a whole.

    If a user id is given, try it with that user first.
    """
    program = shutil.which("bwrap")
    if sys.platform != "linux":
        return Probe(reason="this is not Linux", remedy="use a container engine")
    if program is None:
        return Probe(reason="bubblewrap is not installed", remedy="apt install bubblewrap")
    readable = (*environment(), *more)
    if hidden.resolve().is_relative_to(_SYSTEM):
        return Probe(
            reason=_EXPOSED.format(path=_SYSTEM, inner=hidden),
            remedy="move the data directory to somewhere else",
        )
    for path in readable:
        for inner in (hidden, hidden.resolve(), *_homes()):
            if inner.is_relative_to(path):
                return Probe(
                    reason=_EXPOSED.format(path=path, inner=inner),
                    remedy="install the server into a virtual environment of its own",
                )
    shared = _try_as_user(program, readable, hidden, user) if user else ""
    reason = _try(program, readable) if shared or not user else ""
    if reason:
        return Probe(
            reason=f"bubblewrap does not work: {reason}",
            remedy=_namespace_remedy(),
        )
    return Probe(program=program, readable=readable, shared=shared)


def _homes() -> list[Path]:
    """Return the home directory of this user, or no path if the system knows none."""
    try:
        return [Path.home()]
    except RuntimeError:
        return []


def _namespace_remedy() -> str:
    """Return how to permit user namespaces; name the kernel setting that forbids them, if known."""
    for name, forbidding, allowing in _NAMESPACE_SETTINGS:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", *name.split(".")).read_text().strip() == forbidding:
                return (
                    f"user namespaces are forbidden here, allow them: sysctl -w {name}={allowing}"
                )
    return "let this user create user namespaces; a container's seccomp profile may forbid them"


def forget_trials(hidden: Path) -> None:
    """Remove trial directories whose process was killed, unless a trial may be running now."""
    with _open_directory(hidden) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a trial is running, or the file system has no locks for directories
            return
        for trial in hidden.glob(f"{_TRIAL}*"):
            # A process in it may outlive the trial for a moment, and creates one file.
            shutil.rmtree(trial, ignore_errors=True)
            shutil.rmtree(trial, ignore_errors=True)


def environment() -> tuple[Path, ...]:
    """Return the directories of the Python that runs this server, which runs the agents, too."""
    found = [Path(sys.prefix), Path(sys.base_prefix)]
    # The interpreter may be a link to a link; each hop must exist in the sandbox.
    hop = Path(sys.executable)
    while hop.is_symlink():
        hop = Path(os.path.normpath(hop.parent / hop.readlink()))
        found += [hop.parent.parent] if hop.parent.name == "bin" else []
    found += [path.resolve() for path in found]
    # An editable installation has the server and this plugin in other directories.
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
    """Return the Python code that runs a program without importing this plugin's `__init__`."""
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
    """Return the shim's input to start bubblewrap; an argument `@NAME` is a file in `data`."""
    return {
        "program": program,
        "user": view.user,
        "arguments": arguments(view),
        "data": {name: base64.b64encode(part).decode() for name, part in data(view).items()},
    }


def data(view: View) -> dict[str, bytes]:
    """Return the files that `arguments` refer to: user database, seccomp filter, resolver."""
    found = _files(INSIDE, seccomp.compile_filter(platform.machine()))
    return {**found, **({"resolver": _resolver()} if view.has_resolver else {})}


def arguments(view: View) -> list[str]:
    """Return bubblewrap's arguments without the command."""
    # For a sandbox with its own user, the starting process creates the user namespace.
    made = [] if view.user else ["--unshare-user"]
    made += ["--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    made += ["--unshare-cgroup-try", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL"]
    if view.has_own_network or view.network is not Network.OPEN:
        made.append("--unshare-net")
    made += ["--uid", str(INSIDE), "--gid", str(INSIDE), "--hostname", "sandbox"]
    made += _system(has_resolver=view.has_resolver)
    # A sandbox that runs as root could still change the kernel's settings in /proc/sys.
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
    """Return whether `WORKSPACE` overlaps no other mount, such as a data directory below it."""
    folder = Path(WORKSPACE)
    return not any(one.is_relative_to(folder) or folder.is_relative_to(one) for one in shown)


def fork_server_files(user: int) -> dict[str, bytes]:
    """Return the files that `fork_server_arguments` refer to; 0 is the server's own user."""
    code = seccomp.compile_filter(platform.machine(), may_join=True, in_parts=not user)
    return _files(user or INSIDE, code)


def fork_server_arguments(
    readable: tuple[Path, ...], *, shares_network: bool, has_own_user: bool
) -> list[str]:
    """Return bubblewrap's arguments for the fork server, without the command.

    With a user of its own it is in the server's user namespace, without rights there; otherwise it
    is in a user namespace that encloses those of the sandboxes. It is in the server's pid
    namespace, because the kernel lets a process join a sandbox's pid namespace only from an
    ancestor. Of /proc it sees its own entry alone.
    """
    made = ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent"]
    made += [] if shares_network else ["--unshare-net"]
    made += ["--cap-drop", "ALL"]
    if has_own_user:
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            made += ["--cap-add", name]
    else:
        made += ["--unshare-user", "--uid", str(INSIDE), "--gid", str(INSIDE)]
    # Before the mounts inside them: the server may be installed below one of these.
    made += ["--perms", "1777", "--tmpfs", TEMP, "--perms", "0755", "--dir", "/home"]
    made += ["--perms", "1777", "--tmpfs", HOME]
    shown = {parent: None for path in readable for parent in reversed(path.parents)}
    # bubblewrap would create parent directories that only root may read.
    for path in (*filter(lambda one: one != Path("/"), shown), Path("/etc"), Path("/proc")):
        made += ["--perms", "0755", "--dir", str(path)]
    made += ["--hostname", "sandbox", *_system(has_resolver=False)]
    made += ["--ro-bind", "/proc/self", "/proc/self", "--dev", "/dev", "--dir", "/run"]
    made += ["--dir", "/var", "--symlink", f"..{TEMP}", "/var/tmp"]  # noqa: S108  # its own
    for path in readable:
        made += ["--ro-bind", str(path), str(path)]
    # Processors without a filter get no fork server.
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
    """Return the user database as passwd and group files, and the seccomp filter if any."""
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


def _try_as_user(program: str, readable: tuple[Path, ...], hidden: Path, user: int) -> str:
    """Return why sandboxes cannot run as that user outside, or an empty string."""
    for path in (*readable, *map(Path, {sysconfig.get_path(name) for name in _INSTALLED})):
        if path.is_dir() and path.stat().st_mode & _FOR_ALL != _FOR_ALL:
            return f"other users may not read {path}"
    try:
        with trial(hidden) as path:
            os.chown(path, user, user)
            return _try(program, readable, writable=path, user=user)
    except OSError as exc:
        return f"files cannot be given to user {user}: {exc.strerror}"


@contextlib.contextmanager
def trial(hidden: Path) -> Iterator[Path]:
    """Create a directory that `forget_trials` keeps as long as this process lives."""
    with _open_directory(hidden) as descriptor:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=hidden) as name:
            yield Path(name)


@contextlib.contextmanager
def _open_directory(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try(
    program: str, readable: tuple[Path, ...], *, writable: Path | None = None, user: int = 0
) -> str:
    """Return why Python does not start in a sandbox, or an empty string if it does."""
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


def try_program(command: Sequence[str], *, stdin: bytes = b"", passed: Sequence[int] = ()) -> str:
    """Run a program with this input; return its last line of error output, or an empty string."""
    try:
        ended = subprocess.run(  # noqa: S603  # our own program, or one that the operator installed
            command,
            env={},
            input=stdin,
            capture_output=True,
            pass_fds=passed,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    text = ended.stderr.decode(errors="replace").strip()
    return text.rpartition("\n")[2] or f"it exits with {ended.returncode}" * bool(ended.returncode)
