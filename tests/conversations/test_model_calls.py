"""Calls of models near a limit: one at a time, whoever else comes and goes meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentsvc.conversations.model_tokens import ModelToken, ModelTokens
from agentsvc.models.wire import CallUsage, Upstream

GRANT = ModelToken(
    conversation_id="c",
    user_id="u",
    sandbox_id="s",
    upstream=Upstream(model="m", base_url="http://m", api_key=None),
)


class Calls:
    """Calls that last until they are told to end, and how long the server looks at the budget."""

    def __init__(self) -> None:
        nothing: Any = None
        self.tokens = ModelTokens(
            stores=nothing, vault=nothing, sandboxes=nothing, may_reach=nothing, is_on=True
        )
        self.running: set[str] = set()
        self.ends: dict[str, asyncio.Event] = {}
        self.looks = asyncio.Event()
        self.looks.set()

    async def make(self, name: str) -> None:
        end = self.ends[name] = asyncio.Event()
        async with self.tokens.calling(GRANT, 1):
            self.running.add(name)
            await end.wait()
            self.running.discard(name)

    async def left(self, _grant: ModelToken) -> float:
        await self.looks.wait()
        return 1.0


@contextlib.asynccontextmanager
async def noted(_tokens: ModelTokens, _grant: ModelToken, _guess: CallUsage) -> AsyncIterator[None]:
    yield


async def turn() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_gives_up_lets_no_two_others_call_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, tasks = Calls(), dict[str, asyncio.Task[None]]()
    monkeypatch.setattr(ModelTokens, "_left", lambda _tokens, grant: calls.left(grant))
    monkeypatch.setattr(ModelTokens, "_noted", noted)
    async with asyncio.TaskGroup() as group:

        async def begin(name: str) -> None:
            tasks[name] = group.create_task(calls.make(name))
            await turn()

        await begin("first")
        calls.looks.clear()
        await begin("second")
        calls.ends["first"].set()
        await turn()
        await begin("third")
        tasks["second"].cancel()
        calls.looks.set()
        await turn()
        await begin("fourth")
        assert calls.running == {"third"}
        calls.ends["third"].set()
        await turn()
        assert calls.running == {"fourth"}
        calls.ends["fourth"].set()
