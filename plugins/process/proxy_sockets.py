"""Egress proxies for process sandboxes without the machine's network.

For each of them the server listens on a Unix socket in the sandbox's directory, which the sandbox
can see but not change. Behind it is a proxy that forwards what the sandbox's spec permits, and what
the agent reports to the server. A new server reopens the sockets of all existing sandboxes.
"""

import contextlib
import logging
import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from agentsvc.base import AgentsvcError
from agentsvc.plugin import Network
from agentsvc.plugin.egress import (
    Mode,
    Policy,
    Proxy,
    Resolver,
    parse_policy,
    proxy_environment,
    source_of,
)

from .bubblewrap import DOORS
from .sandbox_directory import OLD_DOOR, OutboundNetwork, Record, SandboxDirectory
from .threads import finish

log = logging.getLogger(__name__)

PROXY_PORT: Final = 3128
"""Port of the proxy inside a sandbox."""

_SO_PASSRIGHTS: Final = 83


class ProxySockets:
    """The open sockets and their proxies; the next server reopens them."""

    def __init__(self) -> None:
        self._resolver: Resolver | None = None
        self._proxies: dict[str, Proxy] = {}
        self._failures: dict[str, str] = {}

    async def open_again(self, folder: SandboxDirectory, record: Record) -> None:
        """Reopen the socket of an existing sandbox, or record and log why that fails."""
        try:
            await self.open(folder, record)
        except (AgentsvcError, OSError, ValueError) as exc:
            reason = f"its proxy socket cannot be opened: {_reason(exc)}"
            if self._failures.get(folder.sandbox_id) != reason:
                log.warning(
                    "sandbox has no network access",
                    extra={"sandbox_id": folder.sandbox_id, "reason": reason},
                    exc_info=exc,
                )
            self._failures[folder.sandbox_id] = reason
        else:
            self._failures.pop(folder.sandbox_id, None)

    async def retry_failed(self, folder: SandboxDirectory, record: Record | None) -> str:
        """Retry a socket that could not be opened; return why it still fails, or ""."""
        if folder.sandbox_id in self._failures and record is not None:
            await self.open_again(folder, record)
        return self._failures.get(folder.sandbox_id, "")

    async def open(self, folder: SandboxDirectory, record: Record) -> None:
        """Open a sandbox's socket if it needs one; an open one gets the present policy.

        It belongs to the sandbox's present user.
        """
        if record.shares_network:
            return
        policy = policy_of(record)
        if folder.sandbox_id in self._proxies:
            self._proxies[folder.sandbox_id].policy = policy
            await finish(lambda: _grant_access(folder.doors, record))
            return
        self._resolver = self._resolver or Resolver()
        proxy = Proxy(
            policy,
            name=folder.sandbox_id,
            resolver=self._resolver,
            sources={split(record.callback)[1]: source_of(folder.sandbox_id)},
        )
        self._proxies[folder.sandbox_id] = proxy
        bound: list[socket.socket] = []
        try:
            # On cancellation, wait for the thread: it would otherwise write to a directory that is
            # being removed, and leave a socket that nobody closes.
            await finish(lambda: bound.append(_bind_socket(folder.doors, record)))
            await proxy.listen_on(bound[0])
        except BaseException:
            # Forget the failed proxy, so that a retry opens it.
            self._proxies.pop(folder.sandbox_id, None)
            await proxy.close()
            for listener in bound:
                listener.close()
            raise

    async def close(self, sandbox_id: str) -> None:
        """Close a sandbox's socket; does nothing if it is not open."""
        self._failures.pop(sandbox_id, None)
        proxy = self._proxies.pop(sandbox_id, None)
        if proxy is not None:
            await proxy.close()

    async def close_all(self) -> None:
        """Close every socket."""
        for sandbox_id in tuple(self._proxies):
            await self.close(sandbox_id)
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None


def callback_of(url: str) -> str:
    """Return host and port of the server's URL as sandboxes see it; empty if there is none."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.hostname}:{port}" if parts.hostname else ""


def split(callback: str) -> tuple[str, int]:
    """Split `host:port`."""
    host, _, port = callback.rpartition(":")
    return host, int(port or 0)


def is_loopback(callback: str) -> bool:
    """Return whether an address is on the loopback interface, which each network has."""
    return split(callback)[0] in ("127.0.0.1", "localhost")


def policy_of(record: Record) -> Policy:
    """Return the proxy's policy for a sandbox."""
    modes = {OutboundNetwork.SLIRP: Mode.NONE, OutboundNetwork.PROXY: Mode.ELSEWHERE}
    mode = modes[record.way_out] if record.way_out in modes else Mode(record.network)
    needed = [split(one) for one in _local_targets(record)]
    return parse_policy(mode, record.allow_hosts, needed, map(split, record.models))


def outward(record: Record) -> tuple[str, ...]:
    """Return the ports and targets of the relay inside the sandbox."""
    if record.shares_network:
        return ()
    door = DOORS / record.door
    # Services on the machine's loopback interface appear on the sandbox's.
    called = [one for one in _local_targets(record) if is_loopback(one)]
    ports = {split(one)[1]: one for one in reversed(called) if split(one)[1] != PROXY_PORT}
    proxy = (f"{PROXY_PORT}={door}",) if record.has_proxy else ()
    return (*proxy, *(f"{port}={door}={one}" for port, one in ports.items()))


def environment(record: Record) -> dict[str, str]:
    """Return the variables that point programs to the proxy."""
    return proxy_environment(PROXY_PORT) if record.has_proxy else {}


def _local_targets(record: Record) -> tuple[str, ...]:
    """Return the addresses that stay reachable, even on the machine's loopback interface."""
    # An open sandbox reaches all other models through its own network.
    models = filter(is_loopback, record.models) if record.network is Network.OPEN else ()
    return tuple(filter(None, (record.callback, *record.reaches, *models)))


def _reason(exc: Exception) -> str:
    """Return the reason of a failure without the server's paths."""
    cause = exc.__cause__ if isinstance(exc.__cause__, OSError) else exc
    return (cause.strerror if isinstance(cause, OSError) else "") or str(cause)


def _grant_access(directory: Path, record: Record) -> None:
    """Rename a bound socket; its user can connect to it, but not list the directory.

    It is bound under another name, because the kernel shows processes inside where a socket was
    bound.
    """
    with contextlib.suppress(FileNotFoundError):
        (directory / OLD_DOOR).rename(directory / record.door)
    if record.user:
        for path, mode in ((directory, 0o710), (directory / record.door, 0o660)):
            os.chown(path, 0, record.user)
            path.chmod(mode)
    else:
        directory.chmod(0o300)


def _bind_socket(directory: Path, record: Record) -> socket.socket:
    directory.mkdir(mode=0o700, exist_ok=True)
    for name in (OLD_DOOR, record.door):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The directory's path may exceed the limit of a socket's path.
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # needs Linux 6.16
            listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        listener.bind(f"/proc/self/fd/{held}/{OLD_DOOR}")
        _grant_access(directory, record)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(held)
    return listener
