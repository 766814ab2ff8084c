"""A package that is loaded ahead and takes what it can get: it notes what it got."""

import contextlib
import ctypes
import fcntl
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.plugins.process.zygote_preload import READ_AGAIN, load, set_up

__all__ = ["READ_AGAIN", "load", "set_up"]

TARGET = Path(os.environ["PATH"].rpartition(":")[2])
"""A directory of the server's, whose name is a port that it listens on and its pid."""

LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
GET_USERNS = 0xB701
GOT: dict[str, str] = {}


def attempt(name: str, act: Callable[[], object]) -> None:
    """Note what an attempt brings, if it brings anything."""
    with contextlib.suppress(OSError):
        GOT[name] = str(act())


def call(function: str, *arguments: object) -> str:
    """Call a function of the C library; raises OSError."""
    if getattr(LIBC, function)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), function)
    return "done"


def connect(address: tuple[str, int] | str, family: int) -> str:
    with socket.socket(family) as link:
        link.settimeout(1)
        link.connect(address)
    return "connected"


def in_a_child(act: Callable[[], object]) -> str:
    """Do what would change this process in another; raises OSError if that fails."""
    heard, said = os.pipe()
    if os.fork() == 0:
        with contextlib.suppress(OSError):
            act()
            os.write(said, b"done")
        os._exit(0)
    os.close(said)
    with os.fdopen(heard, "rb") as file:
        if told := file.read().decode():
            return told
    raise PermissionError


def write(directory: str) -> str:
    path = Path(directory, f"left-by-{os.getpid()}")
    path.touch()
    path.unlink()
    return directory


def some(found: list[str]) -> list[str]:
    """Return what there is; raises OSError if that is nothing."""
    if not found:
        raise ProcessLookupError
    return found


def mount() -> str:
    """Mount over a directory of the test, and nothing that anybody else uses."""
    there = bytes(TARGET)
    done = call("mount", b"none", there, b"tmpfs", 0, None)
    call("umount2", there, 0)
    return done


def others() -> list[str]:
    return some([one.name for one in Path("/proc").iterdir() if one.name.isdigit()])


def interfaces() -> list[str]:
    return some([name for _, name in socket.if_nameindex() if name != "lo"])


def take_all() -> None:
    port, server = map(int, TARGET.name.split("-"))
    attempt("shadow", lambda: Path("/etc/shadow").read_text())
    attempt("data", (TARGET / "master.key").read_text)
    attempt("directory", lambda: list(TARGET.parent.iterdir()))
    attempt("home", lambda: some([str(one) for one in Path("/root").glob(".[a-oq-z]*")]))
    attempt("environment", lambda: Path(f"/proc/{server}/environ").read_text())
    attempt("parent", lambda: Path(f"/proc/{os.getppid()}/environ").read_text())
    attempt("processes", others)
    attempt("loopback", lambda: connect(("127.0.0.1", port), socket.AF_INET))
    attempt("abstract socket", lambda: connect(f"\0agentsvc-{port}", socket.AF_UNIX))
    attempt("engine", lambda: connect("/var/run/docker.sock", socket.AF_UNIX))
    attempt("interfaces", interfaces)
    for directory in ("/", "/usr", "/etc", "/proc/self", sys.prefix, str(Path(__file__).parent)):
        attempt(f"write {directory}", partial(write, directory))
    attempt("signal", lambda: os.kill(server, 0))
    attempt("signal to the parent", lambda: os.kill(os.getppid(), 0))
    seize = partial(call, "ptrace", PTRACE_SEIZE, server, 0, 0)
    attempt("trace", partial(in_a_child, seize))  # whose end is the end of it
    attempt("limits", lambda: call("prlimit", server, 7, None, ctypes.create_string_buffer(16)))
    attempt("name a process", lambda: os.pidfd_open(server))
    attempt("be root", lambda: os.setuid(0))
    for flag in (os.CLONE_NEWUSER, os.CLONE_NEWNS):
        attempt(f"namespaces {flag:x}", partial(in_a_child, partial(os.unshare, flag)))
    attempt("namespace around", lambda: fcntl.ioctl(os.open("/proc/self/ns/uts", 0), GET_USERNS))
    attempt("join", lambda: os.setns(os.open("/proc/self/ns/uts", os.O_RDONLY), os.CLONE_NEWUTS))


take_all()
STATUS = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
