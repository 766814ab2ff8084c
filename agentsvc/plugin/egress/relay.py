"""Forwards loopback ports of a sandbox without any other network to unix sockets of the server.

One file, standard library only, run by the first process inside. Its arguments are: `PORT=SOCKET`;
`PORT=SOCKET=HOST:PORT`, which forwards connections to that one target through the proxy behind the
socket, so that a program needs no proxy settings; and `@NUMBER=PORT`, which forwards connections to the
inherited socket with that descriptor to a port inside. One thread, bounded memory.
"""

import contextlib
import errno
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final

_BUFFER_MAX: Final = 65536
_UNDER_WAY: Final = (0, errno.EINPROGRESS)
_PAIRS_MAX: Final = 512
_FULL_SECONDS: Final = 0.05
_HEAD_MAX: Final = 4096
_HEAD_END: Final = b"\r\n\r\n"


class RelayEnd:
    """One end of a forwarded connection: its socket, and the bytes to be sent there."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.waiting = b""
        self.ends = False
        """No more bytes will be added to `waiting`."""
        self.is_open = True
        """More bytes may be read."""
        self.other: RelayEnd = self
        self.answer: bytes | None = None
        """The beginning of the proxy's response, until its head is complete."""

    def wanted(self) -> int:
        """Return the selector events to wait for."""
        reads = self.is_open and len(self.other.waiting) < _BUFFER_MAX
        reading = selectors.EVENT_READ if reads else 0
        return reading | (selectors.EVENT_WRITE if self.waiting else 0)


class Relay:
    """Accepts connections and forwards bytes; driven by `serve` in a loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._targets: dict[socket.socket, tuple[str | int, bytes]] = {}
        self._pairs = 0

    def listen(self, port: int, path: str, target: str) -> None:
        """Forward a loopback port to a unix socket; with a target, through the proxy behind it."""
        listener = socket.create_server(("127.0.0.1", port), backlog=64)
        listener.setblocking(False)
        request = f"CONNECT {target} HTTP/1.1\r\n\r\n".encode() if target else b""
        self._targets[listener] = (path, request)
        self._selector.register(listener, selectors.EVENT_READ, None)

    def admit(self, listener: socket.socket, port: int) -> None:
        """Forward connections to a listening socket to a port of the loopback interface."""
        listener.setblocking(False)
        self._targets[listener] = (port, b"")
        self._selector.register(listener, selectors.EVENT_READ, None)

    def open(self, arguments: Iterable[str]) -> None:
        """Listen as the arguments say; report failures on stderr."""
        for argument in arguments:
            port, _, rest = argument.partition("=")
            if port.startswith("@"):
                self.admit(socket.socket(fileno=int(port[1:])), int(rest))
                continue
            path, _, target = rest.partition("=")
            try:
                self.listen(int(port), path, target)
            except OSError as exc:
                # A port that is not available, such as a privileged one, must not affect the others.
                sys.stderr.write(f"cannot listen on port {port}: {exc.strerror}\n")

    def watch(self, descriptor: int, act: Callable[[], None]) -> None:
        """Call `act` whenever the descriptor is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def unwatch(self, descriptor: int) -> None:
        """Stop calling `act` for a descriptor."""
        self._selector.unregister(descriptor)

    def serve(self) -> None:
        """Wait for events and handle them."""
        for key, events in self._selector.select():
            if key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]  # a listener
            elif isinstance(key.data, RelayEnd):
                self._transfer(key.data, events)
            else:
                key.data()

    def close(self) -> None:
        """Close all sockets, in a process that was forked from the one that serves them."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            near, _ = listener.accept()
        except OSError:
            # Out of file descriptors: the client stays in the backlog until the next try.
            time.sleep(_FULL_SECONDS)
            return
        if self._pairs >= _PAIRS_MAX:
            near.close()
            return
        target, request = self._targets[listener]
        address = target if isinstance(target, str) else ("127.0.0.1", target)
        family = socket.AF_UNIX if isinstance(target, str) else socket.AF_INET
        try:
            far = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            near.close()
            return
        near.setblocking(False)
        far.setblocking(False)
        try:
            if far.connect_ex(address) not in _UNDER_WAY:
                raise ConnectionRefusedError
        except OSError:
            # The server that runs the proxy is away, or busy: try again later.
            near.close()
            far.close()
            return
        self._pairs += 1
        one, two = RelayEnd(near), RelayEnd(far)
        one.other, two.other = two, one
        if request:
            two.waiting, two.answer = request, b""
        for side in (one, two):
            self._selector.register(side.link, selectors.EVENT_READ | selectors.EVENT_WRITE, side)
            self._update_events(side)

    def _transfer(self, side: RelayEnd, events: int) -> None:
        if side.link.fileno() < 0:
            return  # closed after these events were reported
        try:
            if events & selectors.EVENT_WRITE and side.waiting:
                sent = side.link.send(side.waiting)
                side.waiting = side.waiting[sent:]
            if events & selectors.EVENT_READ and side.is_open:
                self._read(side)
            for each in (side, side.other):
                if each.ends and not each.waiting:
                    each.link.shutdown(socket.SHUT_WR)
                    each.ends = False
        except BlockingIOError:
            return
        except OSError:
            self._drop(side)
            return
        if not (side.is_open or side.other.is_open or side.waiting or side.other.waiting):
            self._drop(side)
            return
        self._update_events(side)
        self._update_events(side.other)

    def _read(self, side: RelayEnd) -> None:
        data = side.link.recv(_BUFFER_MAX)
        if not data:
            side.is_open = False
            side.other.ends = True
            return
        if side.answer is None:
            side.other.waiting += data
            return
        side.answer += data
        head, end, rest = side.answer.partition(_HEAD_END)
        if end:
            if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
                raise OSError
            side.answer = None
            side.other.waiting += rest
        elif len(side.answer) > _HEAD_MAX:
            raise OSError

    def _update_events(self, side: RelayEnd) -> None:
        wanted = side.wanted()
        is_registered = side.link in self._selector.get_map()
        if not wanted:
            if is_registered:
                self._selector.unregister(side.link)
        elif is_registered:
            self._selector.modify(side.link, wanted, side)
        else:
            self._selector.register(side.link, wanted, side)

    def _drop(self, side: RelayEnd) -> None:
        for each in (side, side.other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each.link)
            each.link.close()
            each.waiting, each.is_open, each.ends = b"", False, False
        self._pairs -= 1
