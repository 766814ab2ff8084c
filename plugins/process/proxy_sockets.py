"""Egress proxies for process sandboxes that have no network of the machine's.

For each of them the server listens on a socket in the sandbox's directory, its *door*, which the sandbox
sees and cannot change; behind it is a proxy that lets through what the sandbox's spec allows, and what
the agent reports to the server. A server that starts opens those of all sandboxes there are.
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
"""Where programs in a sandbox find the proxy."""

_SO_PASSRIGHTS: Final = 83


class ProxySockets:
    """The sockets that are open, with their proxies; the next server opens them again."""

    def __init__(self) -> None:
        self._resolver: Resolver | None = None
        self._proxies: dict[str, Proxy] = {}
        self._stuck: dict[str, str] = {}

    async def open_again(self, folder: SandboxDirectory, record: Record) -> None:
        """Open the door of a sandbox that is there already, or note why it cannot be opened."""
        try:
            await self.open(folder, record)
        except (AgentsvcError, OSError, ValueError) as exc:
            reason = f"its way out cannot be opened: {_line(exc)}"
            if self._stuck.get(folder.sandbox_id) != reason:
                log.warning(
                    "sandbox has no network access",
                    extra={"sandbox_id": folder.sandbox_id, "reason": reason},
                    exc_info=exc,
                )
            self._stuck[folder.sandbox_id] = reason
        else:
            self._stuck.pop(folder.sandbox_id, None)

    async def why_stuck(self, folder: SandboxDirectory, record: Record | None) -> str:
        """Try once more to open a door that could not be opened; return why it cannot, if so."""
        if folder.sandbox_id in self._stuck and record is not None:
            await self.open_again(folder, record)
        return self._stuck.get(folder.sandbox_id, "")

    async def open(self, folder: SandboxDirectory, record: Record) -> None:
        """Open a sandbox's door if it needs one; opening an open one is fine.

        It is for the user that the sandbox is now.
        """
        if record.shares_network:
            return
        policy = policy_of(record)
        if folder.sandbox_id in self._proxies:
            self._proxies[folder.sandbox_id].policy = policy
            await finish(lambda: _let_through(folder.doors, record))
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
            # Whoever is cancelled ends with the thread, which else would write to a directory that
            # is being removed, and leave a socket that nobody closes.
            await finish(lambda: bound.append(_bind(folder.doors, record)))
            await proxy.listen_on(bound[0])
        except BaseException:
            # One that could not be opened is not open: whoever tries again opens it.
            self._proxies.pop(folder.sandbox_id, None)
            await proxy.close()
            for listener in bound:
                listener.close()
            raise

    async def close(self, sandbox_id: str) -> None:
        """Close a sandbox's door; fine if it is not open."""
        self._stuck.pop(sandbox_id, None)
        proxy = self._proxies.pop(sandbox_id, None)
        if proxy is not None:
            await proxy.close()

    async def close_all(self) -> None:
        """Close every door."""
        for sandbox_id in tuple(self._proxies):
            await self.close(sandbox_id)
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None


def callback_of(url: str) -> str:
    """Return host and port of the URL at which sandboxes reach the server; empty if there is none."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.hostname}:{port}" if parts.hostname else ""


def split(callback: str) -> tuple[str, int]:
    """Return host and port."""
    host, _, port = callback.rpartition(":")
    return host, int(port or 0)


def is_loopback(callback: str) -> bool:
    """Say whether a sandbox with a network of its own finds the server where it is told it is."""
    return split(callback)[0] in ("127.0.0.1", "localhost")


def policy_of(record: Record) -> Policy:
    """Return what the proxy of a sandbox lets through."""
    modes = {OutboundNetwork.SLIRP: Mode.NONE, OutboundNetwork.PROXY: Mode.ELSEWHERE}
    mode = modes[record.way_out] if record.way_out in modes else Mode(record.network)
    needed = [split(one) for one in _near(record)]
    return parse_policy(mode, record.allow_hosts, needed, map(split, record.models))


def outward(record: Record) -> tuple[str, ...]:
    """Return what the relay inside offers."""
    if record.shares_network:
        return ()
    door = DOORS / record.door
    # What is on the machine's loopback interface is to be found on that of the sandbox.
    called = [one for one in _near(record) if is_loopback(one)]
    ports = {split(one)[1]: one for one in reversed(called) if split(one)[1] != PROXY_PORT}
    proxy = (f"{PROXY_PORT}={door}",) if record.has_proxy else ()
    return (*proxy, *(f"{port}={door}={one}" for port, one in ports.items()))


def environment(record: Record) -> dict[str, str]:
    """Return the variables that send programs to the proxy."""
    return proxy_environment(PROXY_PORT) if record.has_proxy else {}


def _near(record: Record) -> tuple[str, ...]:
    """Return what it reaches wherever that is; on the machine's loopback interface, too."""
    # One with a network of its own finds all models but those there by itself.
    models = filter(is_loopback, record.models) if record.network is Network.OPEN else ()
    return tuple(filter(None, (record.callback, *record.reaches, *models)))


def _line(exc: Exception) -> str:
    """Say what went wrong without telling where the server has its files."""
    told = exc.__cause__ if isinstance(exc.__cause__, OSError) else exc
    return (told.strerror if isinstance(told, OSError) else "") or str(told)


def _let_through(directory: Path, record: Record) -> None:
    """Give a door its name and let its user, and root's, go through it without seeing what it is called.

    It is bound under another one, since the kernel tells inside where a socket was bound.
    """
    with contextlib.suppress(FileNotFoundError):
        (directory / OLD_DOOR).rename(directory / record.door)
    if record.user:
        for path, mode in ((directory, 0o710), (directory / record.door, 0o660)):
            os.chown(path, 0, record.user)
            path.chmod(mode)
    else:
        directory.chmod(0o300)


def _bind(directory: Path, record: Record) -> socket.socket:
    directory.mkdir(mode=0o700, exist_ok=True)
    for name in (OLD_DOOR, record.door):
        with contextlib.suppress(FileNotFoundError):
            (directory / name).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The way to the directory may be longer than a socket's path may be.
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # before Linux 6.16
            listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
        listener.bind(f"/proc/self/fd/{held}/{OLD_DOOR}")
        _let_through(directory, record)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(held)
    return listener
