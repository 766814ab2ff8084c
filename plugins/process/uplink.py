"""The way out of a sandbox that has a network of its own and may connect to anywhere but this machine.

Used by the shim, with the standard library alone. Outside runs slirp4netns, which carries what is
sent to a device inside, as the sandbox's own user where it has one. It ends with the shim.
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
"""Where a sandbox with such a way out asks for names."""

_SIOCADDRT: Final = 0x890B
_UP_REJECT: Final = 0x1 | 0x200
_ALL_ONES: Final = 0xFFFFFFFF
_ROUTE: Final = "@L16s16s16sHhLPhPLLH"
_NO_ADDRESS: Final = bytes(16)
_METADATA: Final = ("169.254.0.0/16", "100.100.100.200", "168.63.129.16")
_ALWAYS_REFUSED: Final = (*_METADATA, "127.0.0.0/8")
"""Where clouds tell their machines secrets; and what a program sends by the device although it is for
the loopback interface, which slirp4netns would carry to that of the machine. By the device it is then
looked for on the link, where nobody has such an address."""
_SIOCSARP: Final = 0x8955
_PERMANENT: Final = 0x2 | 0x4
_ETHERNET: Final = 1
_DEVICE: Final = b"tap0"
_LINKED: Final = ("10.0.2.2", NAMESERVER)
"""Who answers on the link."""
_SOLICITATIONS: Final = tuple(
    f"/proc/sys/net/{one}/neigh/tap0/mcast_solicit" for one in ("ipv4", "ipv6")
)
_READY_SECONDS: Final = 10.0
_ERRORS_MAX: Final = 4096
_OWN_ADDRESS: Final = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")


def why_not() -> str:
    """Return why no sandbox can have such a way out here and what to do, or nothing."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed: install the package `{PROGRAM}`"
    if not DEVICE.exists():
        return f"there is no {DEVICE}: load the module `tun`"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE}: let all users do that, as on most machines"
    return ""


class OutboundLink:
    """The way out of one sandbox; `start` again when its process has ended."""

    def __init__(self, program: str, pid: int, user: int) -> None:
        """Take hold of the network that a process is in; raises OSError where it has ended."""
        self._program = program
        self._user = user
        self._network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        # Not always the namespace of what runs inside, which may be one further in.
        self._owner = fcntl.ioctl(self._network, spaces.NS_GET_USERNS)
        os.set_inheritable(self._owner, False)
        self._around = spaces.around(self._owner) if user else None
        self._ended, self._stays = os.pipe()
        self._refused: frozenset[str] = frozenset()

    def start(self) -> int:
        """Return the pid of what carries everything, once it does; raises OSError where it cannot.

        Addresses that this machine has now lead nowhere, as `follow` sees to later, nor do those at which a cloud tells its
        machines their secrets.
        """
        self._refuse(frozenset([*own_addresses(), *_ALWAYS_REFUSED]))
        ready, tell = os.pipe()
        errors = os.memfd_create("errors")
        try:
            try:
                pid = os.fork()
                if pid == 0:
                    self._become(tell, errors)
            finally:
                os.close(tell)
            # Not `select`, which knows no descriptor above 1023.
            poller = select.poll()
            poller.register(ready, select.POLLIN)
            if not poller.poll(_READY_SECONDS * 1000) or not os.read(ready, 1):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                said = os.pread(errors, _ERRORS_MAX, 0).decode(errors="replace").strip()
                why = said.rpartition("\n")[2] or "it does not get ready"
                raise OSError(f"{PROGRAM} gives it no network: {why}")
        finally:
            os.close(ready)
            os.close(errors)
        with contextlib.suppress(OSError):  # where /proc cannot be written to
            self._within(_know_neighbors)
        return pid

    def _become(self, tell: int, errors: int) -> NoReturn:
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
            # With the shim's environment, which is the mark: it may be stopped when the shim is killed.
            os.execv(argv[0], argv)  # noqa: S606  # the program the operator has installed
        except OSError as exc:
            os.write(2, str(exc).encode())
        finally:
            os._exit(127)

    def follow(self) -> None:
        """Let addresses lead nowhere that this machine has got meanwhile; raises OSError."""
        if new := frozenset(own_addresses()) - self._refused:
            self._refuse(new)

    def _refuse(self, addresses: frozenset[str]) -> None:
        """Let nothing inside reach these."""
        self._within(lambda: _add_refusals(addresses))
        self._refused |= addresses

    def _within(self, act: Callable[[], None]) -> None:
        """Do something in the network, with all rights there; raises OSError where that fails."""
        if not spaces.run_within(self._network, act):
            raise OSError("its ways to this machine cannot be closed")


def own_addresses() -> list[str]:
    """Return the IPv4 addresses that this machine has, but for its loopback interface's."""
    found = _OWN_ADDRESS.findall(Path("/proc/net/fib_trie").read_text())
    return [one for one in dict.fromkeys(found) if not one.startswith("127.")]


def resolv_conf(machines: str) -> bytes:
    """Return what takes the place of the machine's file of that name, given that one's text."""
    kept = [line for line in machines.splitlines() if line.startswith(("search", "options"))]
    return "\n".join([f"nameserver {NAMESERVER}", *kept, ""]).encode()


def _add_refusals(addresses: Iterable[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        for address in addresses:
            # No `ipaddress`: it would take a millisecond of each start.
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


def _know_neighbors() -> None:
    """Have the two that are on the link be known, and nobody else be asked for.

    The kernel has one table of those who are asked for and do not answer, for the whole machine.
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
        with contextlib.suppress(FileNotFoundError):  # without IPv6
            Path(path).write_text("0")
