"""No conversation is stuck when its agent server freezes or dies in the middle of a step.

Within half a minute nobody says any more that the agent works; when the agent server is back, by
itself or because its sandbox was resumed, a plain new message goes on. A few agent servers are real
ones, processes of this machine.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from agentsvc.base.values import monotonic
from agentsvc.testing.llm import Script, call, say
from tests.http.gateway.steps import until
from tests.live.client import PATIENCE
from tests.live.scripts import run as running
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.real import SECONDS, RealServer, real_server
from tests.resilience.server import Server, serving
from tests.service import Client

CASES: Final = 200
HONEST_SECONDS: Final = 30.0
_OF_REAL: Final = 0.04
_AT_ONCE: Final = 24
_REAL_AT_ONCE: Final = 4
_V1: Final = "/api/v1/app-conversations"
_SAYS_IT_RUNS: Final = "running"
_OVER: Final = ("finished", "idle")
_LONG: Final[Script] = (
    call("terminal", command="true"),
    say("That took long.", delay_seconds=3600.0),
)
_STEP: Final[Script] = (say("That took a minute.", delay_seconds=60.0),)
_SCRIPTS: Final[dict[str, Script]] = {
    "long": _LONG,
    "step": _STEP,
    "say": (say("Hello again."),),
}
_FROZEN_SECONDS: Final = 3600.0
_STEP_SECONDS: Final = 20
WAYS: Final = ("killed", "restarted", "frozen")
_REAL_WAYS: Final = ("killed", "frozen")


class Found(msgspec.Struct, kw_only=True):
    """What all cases have shown."""

    cases: dict[str, int] = {}
    dishonest: list[str] = []
    stuck: list[str] = []
    slowest_seconds: float = 0.0


async def run(ground: Ground) -> Outcome:
    cases = ground.count(CASES, least=6)
    of_real = max(len(_REAL_WAYS), round(cases * _OF_REAL))
    found = Found()
    async with asyncio.TaskGroup() as group:
        group.create_task(_with_real(ground, of_real, found))
        group.create_task(_with_fakes(ground, cases - of_real, found))
    told = ", ".join(f"{count} {way}" for way, count in sorted(found.cases.items()))
    done = sum(found.cases.values())
    return Outcome(
        did=(
            f"agent servers in the middle of a step, {of_real} of them real: {told}; then looked at until"
            " nobody says that the agent works, resumed if the sandbox has failed, and a new message"
            " sent"
        ),
        figures=(
            Figure(what="cases", value=done, at_least=cases),
            zero("said to be running after 30 s", found.dishonest),
            zero("where a new message did not go on", found.stuck),
            Figure(
                what="s until honest at most",
                value=round(found.slowest_seconds, 1),
                at_most=HONEST_SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(found.dishonest + found.stuck),
    )


async def _with_fakes(ground: Ground, cases: int, found: Found) -> None:
    config = {"sandboxes": {"max_running": 2 * _AT_ONCE}}
    async with serving(ground.place("fakes"), config=config, scripts=_SCRIPTS) as server:
        await server.client.save_settings()

        async def on_call(method: str, sandbox_id: str) -> None:
            if method in ("restart", "resume"):
                server.place.agent.restart(sandbox_id)

        server.place.on_call = on_call
        ways = [WAYS[number % len(WAYS)] for number in range(cases)]
        await _all_of(ways, _AT_ONCE, lambda way: _one_fake(server, way, found))


async def _with_real(ground: Ground, cases: int, found: Found) -> None:
    environment = {
        "AGENTSVC_SANDBOXES__MAX_RUNNING": str(2 * _REAL_AT_ONCE),
        # Several are loaded at a time, which takes long on a busy machine.
        "AGENTSVC_SANDBOXES__START_SECONDS": str(SECONDS),
    }
    async with real_server(ground.place("real"), environment) as server:
        ways = [_REAL_WAYS[number % len(_REAL_WAYS)] for number in range(cases)]
        await _all_of(ways, _REAL_AT_ONCE, lambda way: _one_real(server, way, found))


async def _all_of(
    ways: Iterable[str], at_once: int, try_one: Callable[[str], Awaitable[None]]
) -> None:
    """Try a case for each of the ways, so many at a time."""
    left = iter(ways)

    async def some() -> None:
        for way in left:
            await try_one(way)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(some())


async def _one_fake(server: Server, way: str, found: Found) -> None:
    """Have one agent server end in one way while it uses a tool."""
    client, agent = server.client, server.place.agent
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    # What only froze ends its step when it goes on.
    text = f"go [script:{'step' if way == 'frozen' else 'long'}]"
    conversation_id = await client.start_conversation(text, sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "running")
    if way == "frozen":
        agent.sandboxes[sandbox_id].slow_seconds = _FROZEN_SECONDS
    else:
        agent.crash(sandbox_id)
    if way == "killed":
        server.place.world.end(sandbox_id, 137, "killed by signal 9")
    if way == "restarted":
        agent.restart(sandbox_id)

    async def bring_back() -> None:
        agent.sandboxes[sandbox_id].slow_seconds = 0.0

    await _look(client, conversation_id, way, bring_back, found)
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")


async def _one_real(server: RealServer, way: str, found: Found) -> None:
    """Have a real agent server end or freeze while its agent's command runs."""
    client = server.client
    sandbox = await server.sandbox()
    conversation_id = await client.start_conversation(
        running(f"sleep {_STEP_SECONDS}"), sandbox_id=sandbox.id
    )
    await client.wait_for_execution(conversation_id, "running")
    # What it is just starting looks like it for a moment, and comes after it.
    pid, *_ = server.installation.agent_servers(sandbox.id)
    os.kill(pid, signal.SIGSTOP if way == "frozen" else signal.SIGKILL)

    async def bring_back() -> None:
        if way == "frozen":
            os.kill(pid, signal.SIGCONT)

    await _look(client, conversation_id, f"{way} of the real ones", bring_back, found)
    await client.delete(f"/api/v1/sandboxes/{sandbox.id}")


async def _look(
    client: Client,
    conversation_id: str,
    way: str,
    bring_back: Callable[[], Awaitable[None]],
    found: Found,
) -> None:
    """Wait until the state is honest, bring the agent server back, and go on."""
    found.cases[way] = found.cases.get(way, 0) + 1
    began = monotonic()
    try:
        await client.wait_for_conversation(
            conversation_id, lambda seen: seen["execution_status"] != _SAYS_IT_RUNS
        )
    except AssertionError as exc:
        found.dishonest.append(f"{way}: {exc}")
        return
    took = monotonic() - began
    found.slowest_seconds = max(found.slowest_seconds, took)
    if took > HONEST_SECONDS:
        found.dishonest.append(f"{way}: after {took:.0f} s")
    await bring_back()
    try:
        await _go_on(client, conversation_id)
    except (AssertionError, TimeoutError) as exc:
        found.stuck.append(f"{way}: {exc!r}"[:400])


async def _go_on(client: Client, conversation_id: str) -> None:
    seen = await client.conversation(conversation_id)
    if seen["sandbox_status"] != "RUNNING":
        answer = await client.post(f"/api/v1/sandboxes/{seen['sandbox_id']}/resume")
        assert answer.status == 200, answer.text
        await client.wait_for_sandbox(seen["sandbox_id"], "RUNNING")
    before = _said(await client.events(conversation_id))
    message = {"role": "user", "content": [{"type": "text", "text": "And now? [script:say]"}]}
    answer = await client.post(f"{_V1}/{conversation_id}/send-message", json=message)
    assert answer.status == 200, answer.text

    async def has_answered() -> bool:
        return _said(await client.events(conversation_id)) > before

    await until(has_answered, time_limit=PATIENCE)
    await client.wait_for_conversation(
        conversation_id, lambda seen: seen["execution_status"] in _OVER
    )


def _said(events: list[dict[str, object]]) -> int:
    """Return how often the agent has said something, be it by its tool that ends a run.

    One that was killed before its first step is told both messages as one, and does what both say.
    """
    return sum(
        one["source"] == "agent"
        and (one["kind"] == "MessageEvent" or one.get("tool_name") == "finish")
        for one in events
    )


ROW: Final = Row(name="stuck", half=Half.LOST, promise="no conversation is stuck", run=run)
