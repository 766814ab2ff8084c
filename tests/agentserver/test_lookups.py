"""Names that are answered slowly."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from agentsvc.agentserver.safe_connector import SafeConnector

LOOKUPS = 40
"""More than the event loop has threads of its own."""


async def test_slow_names_take_no_thread_of_the_rest_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end, begun = threading.Event(), threading.Semaphore(0)

    def answer(*_: Any, **__: Any) -> list[Any]:
        begun.release()
        may_end.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    reach = SafeConnector()
    lookups = (reach.resolve("slow.example", 443) for _ in range(LOOKUPS))
    waiting = asyncio.gather(*lookups, return_exceptions=True)
    try:
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(begun.acquire)
            assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        may_end.set()
    assert {type(one) for one in await waiting} == {socket.gaierror}
