"""The uplink of a sandbox with its own network: to every address except this machine's.

Used by the shim, with the standard library alone. slirp4netns runs outside and forwards the traffic
of a tap device inside, as the sandbox's own user if it has one. It ends with the shim.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import socket
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

from .programs import spaces

PROGRAM: Final = "slirp4netns"
DEVICE: Final = Path("/dev/net/tun")
NAMESERVER: Final = "10.0.2.3"
"""The DNS resolver of a sandbox with an uplink."""

_SIOCADDRT: Final = 0x890B
_UP_REJECT: Final = 0x1 | 0x200
_ALL_ONES: Final = 0xFFFFFFFF
_ROUTE: Final = "@L16s16s16sHhLPhPLLH"
_NO_ADDRESS: Final = bytes(16)
_METADATA: Final = ("169.254.0.0/16", "100.100.100.200", "168.63.129.16")
_ALWAYS_BLOCKED: Final = (*_METADATA, "127.0.0.0/8")
"""Metadata services, from which machines in clouds get secrets; and loopback addresses, which
slirp4netns would forward to the machine's own loopback interface if a program sends to them through
the device. A program that binds to the device bypasses the blocking routes; the addresses are then
resolved on the link, where no host has them."""
_SIOCSARP: Final = 0x8955
_PERMANENT: Final = 0x2 | 0x4
_ETHERNET: Final = 1
_DEVICE: Final = b"tap0"
_LINKED: Final = ("10.0.2.2", NAMESERVER)
"""The hosts that answer on the link."""
_SOLICITATIONS: Final = tuple(
    f"/proc/sys/net/{one}/neigh/tap0/mcast_solicit" for one in ("ipv4", "ipv6")
)
_READY_SECONDS: Final = 10.0
_ERRORS_MAX: Final = 4096
_OWN_ADDRESS: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def why_not() -> str:
    """Return why no sandbox can have an uplink here and what to do, or an empty string."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed: install the package `{PROGRAM}`"
    if not DEVICE.exists():
        return f"there is no {DEVICE}: load the module `tun`"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE}: let all users do that, as on most machines"
    return ""


class OutboundLink:
    """The uplink of one sandbox; call `start` again if its process has ended."""

    def __init__(self, program: str, pid: int, user: int) -> None:
        """Open the network namespace of a process; raises OSError if it has ended."""
        self._program = program
        self._user = user
        self._network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # Not always the namespace of the processes inside, which may be nested in it.
        self._owner = fcntl.ioctl(self._network, spaces.NS_GET_USERNS)
        os.set_inheritable(self._owner, False)
        self._around = spaces.around(self._owner) if user else None
        self._ended, self._stays = os.pipe()
        self._blocked: frozenset[str] = frozenset()

    def start(self) -> int:
        """Start slirp4netns and return its pid once it is ready; raises OSError if it fails.

        This machine's present addresses are unreachable, as `follow` ensures for later ones, and so
        are the metadata services of clouds.
        """
        self._block(frozenset([*own_addresses(), *_ALWAYS_BLOCKED]))
        ready, tell = os.pipe()
        errors = os.memfd_create("errors")
        try:
            try:
                pid = os.fork()
                if pid == 0:
                    self._exec_slirp(tell, errors)
            finally:
                os.close(tell)
            # Not `select`, which fails for descriptors above 1023.
            poller = select.poll()
            poller.register(ready, select.POLLIN)
            if not poller.poll(_READY_SECONDS * 1000) or not os.read(ready, 1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                output = os.pread(errors, _ERRORS_MAX, 0).decode(errors="replace").strip()
                why = output.rpartition("\n")[2] or "it did not become ready"
                raise OSError(f"{PROGRAM} failed: {why}")
        finally:
            os.close(ready)
            os.close(errors)
        with contextlib.suppress(OSError):  # if /proc is not writable
            self._run_inside(_add_neighbors)
        return pid

    def _exec_slirp(self, tell: int, errors: int) -> NoReturn:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for number, at in ((null, 0), (null, 1), (errors, 2)):
                os.dup2(number, at)
            for number in (self._network, self._owner, self._ended, tell):
                os.set_inheritable(number, True)
            for signal_number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(signal_number, signal.SIG_DFL)
            if self._user:
                spaces.become(self._user, self._around)
            argv = [self._program, "--configure", "--mtu=65520", "--disable-host-loopback"]
            argv += ["--enable-seccomp", *(["--enable-sandbox"] if os.geteuid() == 0 else [])]
            argv += [f"--ready-fd={tell}", f"--exit-fd={self._ended}", "--netns-type=path"]
            argv += [f"--userns-path=/proc/self/fd/{self._owner}"]
            argv += [f"/proc/self/fd/{self._network}", "tap0"]
            # Keeps the shim's environment with the mark, so that it can be stopped if the shim is
            # killed.
            os.execv(argv[0], argv)  # noqa: S606  # a program that the operator installed
        except OSError as exc:
            os.write(2, str(exc).encode())
        finally:
            os._exit(127)

    def follow(self) -> None:
        """Make addresses unreachable that this machine has got meanwhile; raises OSError."""
        if new := frozenset(own_addresses()) - self._blocked:
            self._block(new)

    def _block(self, addresses: frozenset[str]) -> None:
        """Make these addresses unreachable from inside."""
        self._run_inside(lambda: _add_reject_routes(addresses))
        self._blocked |= addresses

    def _run_inside(self, act: Callable[[], None]) -> None:
        """Call a function with all rights in the network namespace; raises OSError on failure."""
        if not spaces.run_within(self._network, act):
            raise OSError("the routes to this machine cannot be blocked")


def own_addresses() -> list[str]:
    """Return the IPv4 addresses of this machine except those of its loopback interface."""
    found = _OWN_ADDRESS.findall(Path("/proc/net/fib_trie").read_text())
    return [one for one in dict.fromkeys(found) if not one.startswith("127.")]


def resolv_conf(machines: str) -> bytes:
    """Return the sandbox's resolv.conf, given the text of the machine's."""
    kept = [line for line in machines.splitlines() if line.startswith(("search", "options"))]
    return "\n".join([f"nameserver {NAMESERVER}", *kept, ""]).encode()


def _add_reject_routes(addresses: Iterable[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for address in addresses:
            # No `ipaddress`: importing it would take a millisecond of each start.
            base, _, bits = address.partition("/")
            ones = (_ALL_ONES << (32 - int(bits or 32)) & _ALL_ONES).to_bytes(4)
            target, mask = (
                struct.pack("@HH4s8x", socket.AF_INET, 0, one)
                for one in (socket.inet_aton(base), ones)
            )
            route = struct.pack(
                _ROUTE, 0, target, _NO_ADDRESS, mask, _UP_REJECT, 0, 0, 0, 0, 0, 0, 0, 0
            )
            with contextlib.suppress(FileExistsError):
                fcntl.ioctl(link, _SIOCADDRT, route)


def _add_neighbors() -> None:
    """Add the two hosts on the link as permanent neighbors, and disable solicitation.

    The kernel has one table of unanswered neighbors for the whole machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for address in _LINKED:
            at = socket.inet_aton(address)
            name = struct.pack("@HH4s8x", socket.AF_INET, 0, at)
            hardware = struct.pack("@H2s4s8x", _ETHERNET, b"\x52\x55", at)
            fcntl.ioctl(
                link,
                _SIOCSARP,
                struct.pack("@16s16si16s16s", name, hardware, _PERMANENT, b"", _DEVICE),
            )
    for path in _SOLICITATIONS:
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            Path(path).write_text("0")
