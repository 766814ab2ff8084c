"""One connection of an editor over a WebSocket. Imported on first use."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from agentsvc.base import Secret
from agentsvc.cli.extension import Api
from agentsvc.extension.accounts import OPEN_CONNECTIONS
from agentsvc.extension.web import LIVE, PRINCIPAL

from .agent import Agent
from .config import OrderQuery
from .connection import Connection

_SEND_SECONDS: Final = 60.0
_MAX_WAITING: Final = 256
_MAX_BYTES_WAITING: Final = 64 * 1024 * 1024


class Inbox:
    """The queue of messages from an editor."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Each counter is written by one thread only.
        self._put_bytes = self._taken_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the editor sends faster than its messages are handled."""
        waiting = self._put_bytes - self._taken_bytes
        return self._lines.qsize() > _MAX_WAITING or waiting > _MAX_BYTES_WAITING

    def put(self, line: bytes) -> None:
        """Add a message."""
        self._put_bytes += len(line)
        self._lines.put(line)

    def end(self) -> None:
        """Mark the end of the messages."""
        self._lines.put(None)

    def __iter__(self) -> Iterator[bytes]:
        while (line := self._lines.get()) is not None:
            self._taken_bytes += len(line)
            yield line


async def serve(
    request: web.Request,
    socket: web.WebSocketResponse,
    order: OrderQuery,
    server: tuple[str, Secret],
) -> None:
    """Handle messages until the editor disconnects, its key is revoked, or the server stops."""
    api = Api(*server)
    loop = asyncio.get_running_loop()
    inbox = Inbox()

    def send(line: bytes) -> None:
        try:
            sending = asyncio.run_coroutine_threadsafe(socket.send_str(line.decode()), loop)
            sending.result(_SEND_SECONDS)
        except (OSError, RuntimeError, CancelledError):
            # The editor has disconnected, or does not read.
            connection.end()

    connection = Connection(inbox, send)
    agent = Agent(api, connection, order)
    # Its requests to this server must not occupy the threads of the event loop's executor.
    threading.Thread(target=connection.serve, args=(agent.answer,), daemon=True).start()
    revoked = asyncio.Event()
    try:
        with (
            request.app[LIVE].opened() as over,
            request.app[OPEN_CONNECTIONS].held(request[PRINCIPAL], revoked.set),
        ):
            async with asyncio.TaskGroup() as group:
                works = [
                    group.create_task(one)
                    for one in (receive(socket, inbox), over.wait(), revoked.wait())
                ]
                await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
                for work in works:
                    work.cancel()
    finally:
        connection.end()
        inbox.end()
    await socket.close(
        code=WSCloseCode.POLICY_VIOLATION if revoked.is_set() else WSCloseCode.GOING_AWAY
    )


async def receive(socket: web.WebSocketResponse, inbox: Inbox) -> None:
    """Enqueue messages until the queue is full or the editor disconnects."""
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            inbox.put(message.data.encode())
        if inbox.is_full:
            return
