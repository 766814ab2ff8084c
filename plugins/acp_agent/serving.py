"""One connection of an editor over a WebSocket. Imported with the first one."""

import asyncio
import queue
import threading
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


async def serve(
    request: web.Request,
    socket: web.WebSocketResponse,
    order: OrderQuery,
    server: tuple[str, Secret],
) -> None:
    """Answer until the editor, its key or the server is gone."""
    api = Api(*server)
    loop = asyncio.get_running_loop()
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(line: bytes) -> None:
        try:
            sending = asyncio.run_coroutine_threadsafe(socket.send_str(line.decode()), loop)
            sending.result(_SEND_SECONDS)
        except (OSError, RuntimeError, CancelledError):
            # It has gone, or takes nothing any more.
            connection.end()

    connection = Connection(iter(inbox.get, None), send)
    agent = Agent(api, connection, order)
    # What it does waits for answers of this server: it may take none of the loop's own threads.
    threading.Thread(target=connection.serve, args=(agent.answer,), daemon=True).start()
    lost = asyncio.Event()
    try:
        with (
            request.app[LIVE].opened() as over,
            request.app[OPEN_CONNECTIONS].held(request[PRINCIPAL], lost.set),
        ):
            async with asyncio.TaskGroup() as group:
                works = [
                    group.create_task(one)
                    for one in (_receive(socket, inbox), over.wait(), lost.wait())
                ]
                await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
                for work in works:
                    work.cancel()
    finally:
        connection.end()
        inbox.put(None)
    await socket.close(
        code=WSCloseCode.POLICY_VIOLATION if lost.is_set() else WSCloseCode.GOING_AWAY
    )


async def _receive(socket: web.WebSocketResponse, inbox: "queue.SimpleQueue[bytes | None]") -> None:
    """Take messages while the editor sends no more than are answered."""
    async for message in socket:
        if message.type is WSMsgType.TEXT:
            inbox.put(message.data.encode())
        if inbox.qsize() > _MAX_WAITING:
            return
