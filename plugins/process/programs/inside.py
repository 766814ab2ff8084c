"""The first process in a bubblewrap sandbox: its ports, its connections in and out, its commands.

Run as a program by `shim`, with the standard library alone; it has the same view and rights as any
other process in the sandbox. The shim sends it the orders, sockets on which the server connects to
the sandbox's ports, and later a connection for each further command. When it ends, the kernel ends
all processes that are left inside.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Final

from ..landlock import leave_abstract_sockets
from .children import (
    MAX_FILES,
    Command,
    Execution,
    Json,
    Ports,
    become_reaper,
    kill,
    kill_descendants,
    read_available,
    start_ordered,
    wake_on_child,
)
from .joining import become_hidden, lose_capabilities

_MESSAGE_MAX: Final = 64
_FILES_MAX: Final = 200
_ADOPT_SECONDS: Final = 10.0


def main() -> None:
    """Carry out the orders, and exit as the command exits."""
    lose_capabilities()
    # Other processes in the sandbox must not read its memory or its descriptors.
    become_hidden()
    number = int(sys.argv[1])
    # Close inherited descriptors of namespaces, which no process here may enter.
    os.closerange(3, number)
    os.closerange(number + 1, MAX_FILES)
    channel = socket.socket(fileno=number)
    os.set_inheritable(channel.fileno(), False)
    _, files, _, _ = socket.recv_fds(channel, _MESSAGE_MAX, _FILES_MAX)
    if not files:
        return
    for number in files:
        os.set_inheritable(number, False)
    with os.fdopen(files[0], "rb") as file:
        orders: Json = json.load(file)
    become_reaper(b"agentsvc-inside")
    # To services on abstract sockets, a sandbox that is root outside is the machine's root.
    with contextlib.suppress(OSError):
        leave_abstract_sockets()
    inside = SandboxRun(orders, files[1:])
    sys.exit(inside.run(channel))


class SandboxRun:
    """One run of a sandbox's command, with its ports and relay."""

    def __init__(self, orders: Json, listeners: Sequence[int]) -> None:
        self.orders = orders
        self.listeners = listeners
        self.ports: dict[str, int] = {}
        self.relay: Any = None

    def run(self, channel: socket.socket) -> int:
        """Start everything, report the ports, and return the command's exit code."""
        wake = wake_on_child()
        try:
            held = Ports(self.orders)
        except OSError as exc:
            channel.send(json.dumps({"failed": f"a port cannot be had: {exc.strerror}"}).encode())
            return 1
        self.ports = held.numbers
        self._start_relay()
        own = os.pidfd_open(os.getpid())
        socket.send_fds(channel, [json.dumps({"ports": self.ports}).encode()], [own])
        os.close(own)
        command = self._adopt(channel, held.passed()) if self.orders["waits"] else None
        if command is None:
            command = start_ordered(self.orders, held, self.orders["umask"], streams=(1, 2))
        held.deliver_once()
        signal.signal(signal.SIGTERM, lambda _number, _frame: kill(command.pid, signal.SIGTERM))
        self._attend(command, channel, wake)
        kill_descendants()
        return command.exit_code or 0

    def _adopt(self, channel: socket.socket, passed: Sequence[int]) -> Command | None:
        """Return the command if a fork of the fork server has entered to become it, or None."""
        _, files, _, _ = socket.recv_fds(channel, _MESSAGE_MAX, 1)
        for number in files:
            with socket.socket(fileno=number) as talk:
                talk.settimeout(_ADOPT_SECONDS)
                with contextlib.suppress(OSError, ValueError):
                    pid = int(talk.recv(_MESSAGE_MAX))
                    told = str(self.orders["umask"]).encode()
                    socket.send_fds(talk, [told], [1, 2, *passed])
                    return Command(pid)
        return None

    def _start_relay(self) -> None:
        """Forward connections from outside to the ports, and from inside to the proxy sockets."""
        # In this process: another one would take ten times the memory, and anything here could kill
        # it.
        module: Any = ModuleType("relay")
        SourceFileLoader("relay", self.orders["relay"]).exec_module(module)
        self.relay = module.Relay()
        inward = zip(self.listeners, self.ports.values(), strict=True)
        self.relay.open([*(f"@{one}={port}" for one, port in inward), *self.orders["outward"]])

    def _attend(self, command: Command, channel: socket.socket, wake: int) -> None:
        def hear() -> None:
            if not self._on_message(command, channel):
                self.relay.unwatch(channel.fileno())

        self.relay.watch(wake, lambda: read_available(wake))
        self.relay.watch(channel.fileno(), hear)
        while not command.reap():
            self.relay.serve()

    def _on_message(self, command: Command, channel: socket.socket) -> bool:
        message, files, _, _ = socket.recv_fds(channel, _MESSAGE_MAX, 1)
        if message == b"end":
            kill(command.pid, signal.SIGTERM)
        for number in files:
            self._serve(socket.socket(fileno=number), channel)
        return bool(message)

    def _serve(self, connection: socket.socket, channel: socket.socket) -> None:
        execution = Execution(self.orders, self.ports, self.orders["umask"])

        def prepare() -> None:
            channel.close()
            self.relay.close()

        execution.serve_apart(connection, prepare)
        connection.close()
