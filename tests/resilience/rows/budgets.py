"""A conversation costs no more than its budget and at most one call, whoever asks its model how often.

Models are asked through the server with the token that the agent has, by several at once as sub-agents
do, until they are refused; the server is killed or stopped meanwhile, and starts again. What counts is
what the model itself was asked, at prices that are known.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.base.values import Secret
from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel, say
from tests.http.gateway.steps import until
from tests.live.client import PATIENCE
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Client

RUNS: Final = 500
_OF_EACH: Final = 7
"""Runs of each user in which the server ends once, now by a signal that it hears of and now not."""
_USERS: Final = 4
_KEY: Final = "sk-the-key-of-the-campaign"
_PRICES: Final = {"input_cost_per_token": 0.0019, "output_cost_per_token": 0.002}
_COST: Final = 0.2
"""Of one call: a hundred tokens in, about as many as a question is long, and five out."""
_TOOL: Final = {
    "type": "function",
    "function": {"name": "finish", "description": "x" * 160, "parameters": {}},
}


class User(msgspec.Struct, frozen=True, kw_only=True):
    """Who has budgets, and a sandbox for all conversations."""

    client: Client
    sandbox_id: str


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation, as its agent knows it."""

    user: User
    conversation_id: str
    token: str
    budget: float
    askers: int


class Found(msgspec.Struct, kw_only=True):
    """What all runs have shown."""

    runs: int = 0
    calls: int = 0
    stops: int = 0
    kills: int = 0
    cut_off: Counter[str] = Counter()
    """How many calls of a conversation had no answer, which the model may or may not have heard of."""
    over: list[str] = []
    wrong: list[str] = []
    max_over: int = 0


async def run(ground: Ground) -> Outcome:
    wanted = ground.count(RUNS, least=_OF_EACH * _USERS)
    found = Found()
    reply = say("Hello!", prompt_tokens=100, completion_tokens=5)
    async with ScriptedModel(script=[reply], follow_up=[reply], key=Secret(_KEY)) as model:
        config = {"sandboxes": {"model_hosts": [host_of_url(model.url)], "max_running": 50}}
        async with serving(ground.place("server"), config=config) as server:
            users = [await _add_user(server, model, number) for number in range(_USERS)]
            while found.runs < wanted:
                await _run_some(ground, server, model, users, found)
    return Outcome(
        did=(
            f"calls of {_COST} dollars through the server, of 1 to 4 askers at once for each budget of"
            f" 0.1 to 2 dollars, streamed or not, until they were refused; {found.kills} kills and"
            f" {found.stops} stops of the server in the midst, which {found.cut_off.total()} calls had no"
            " answer for; counted at the model"
        ),
        figures=(
            Figure(what="runs", value=found.runs, at_least=wanted),
            Figure(what="calls", value=found.calls, at_least=wanted),
            Figure(what="calls over a budget at most", value=found.max_over, at_most=1),
            zero("runs more than one call over", found.over),
            zero("runs that could not spend their budget, or other answers", found.wrong),
        ),
        problems=tuple(found.over + found.wrong),
    )


async def _add_user(server: Server, model: ScriptedModel, number: int) -> User:
    client = await server.add_user(f"user-{number}")
    llm = {"model": "openai/scripted", "api_key": _KEY, "base_url": model.url, **_PRICES}
    body = {"agent_settings_diff": {"llm": llm}}
    answer = await client.post("/api/v1/settings", json=body)
    assert answer.status == 200, answer.text
    # The sandbox stays as long as one conversation lives there.
    first = await client.conversation(await client.start_conversation(None))
    return User(client=client, sandbox_id=first["sandbox_id"])


async def _run_some(
    ground: Ground, server: Server, model: ScriptedModel, users: Sequence[User], found: Found
) -> None:
    """Spend some budgets at once, the server being ended meanwhile, and count."""
    lent = await asyncio.gather(*(_lend_some(ground, server, user) for user in users))
    some = [one for of_user in lent for one in of_user]
    before = len(model.requests)
    async with asyncio.TaskGroup() as group:
        for one in some:
            for _ in range(one.askers):
                group.create_task(_spend(server, one, found))
        # A few calls go before, however slow this machine is.
        wanted = before + ground.chance.randint(1, 3 * len(some))
        await until(lambda: len(model.requests) >= wanted, time_limit=PATIENCE)
        await _end(server, found)
        await server.start()
    asked = Counter(_tag_of(body) for body in model.requests[before:])
    for one in some:
        calls = asked[one.conversation_id]
        over = calls - math.floor(one.budget / _COST + 1e-9)
        found.max_over = max(found.max_over, over)
        if over > 1:
            found.over.append(f"{calls} calls for {one.budget:.2f}, {one.askers} askers")
        if (calls + found.cut_off[one.conversation_id]) * _COST < one.budget - 1e-9:
            found.wrong.append(f"{calls} calls only for {one.budget:.2f}")
        await one.user.client.delete(f"/api/v1/app-conversations/{one.conversation_id}")
    found.runs += len(some)
    found.calls += sum(asked.values())


async def _end(server: Server, found: Found) -> None:
    """Kill the server two times of three, and stop it once."""
    if (found.kills + found.stops) % 3 == 2:
        found.stops += 1
        await server.installation.stop()
    else:
        found.kills += 1
        await server.kill()


async def _lend_some(ground: Ground, server: Server, user: User) -> list[Inside]:
    return [await _lend(ground, server, user) for _ in range(_OF_EACH)]


async def _lend(ground: Ground, server: Server, user: User) -> Inside:
    """Start a conversation with a budget; its agent has a token for the model."""
    budget = round(ground.chance.uniform(0.1, 2.0), 2)
    await user.client.post("/api/settings", json={"max_budget_per_task": budget})
    conversation_id = await user.client.start_conversation(None, sandbox_id=user.sandbox_id)
    hex_id = conversation_id.replace("-", "")
    [token] = [
        body["agent"]["llm"]["api_key"]
        for path, body in server.place.agent.sandboxes[user.sandbox_id].bodies
        if path.endswith("/api/conversations")
        and body["conversation_id"].replace("-", "") == hex_id
    ]
    return Inside(
        user=user,
        conversation_id=conversation_id,
        token=token,
        budget=budget,
        askers=ground.chance.randint(1, 4),
    )


async def _spend(server: Server, inside: Inside, found: Found) -> None:
    """Ask until it is refused for the budget; a server that is away is asked again."""
    client = server.client_with(None)
    number = 0
    while True:
        number += 1
        body = {
            "model": "scripted",
            "stream": number % 2 == 0,
            "messages": [{"role": "user", "content": inside.conversation_id}],
            "tools": [_TOOL],
        }
        headers = {"Authorization": f"Bearer {inside.token}"}
        try:
            answer = await client.post("/llm/v1/chat/completions", json=body, headers=headers)
            if answer.status == 402:
                return
            if answer.status not in (200, 503):
                found.wrong.append(f"{answer.status} {answer.text[:200]}")
                return
        except aiohttp.ClientConnectorError:
            # It is not there yet.
            await asyncio.sleep(0.02)
        except (aiohttp.ClientError, ConnectionError):
            found.cut_off[inside.conversation_id] += 1
        await asyncio.sleep(0.01)


def _tag_of(body: dict[str, Any]) -> str:
    """Return whose call it is."""
    content = body["messages"][0]["content"]
    return content if isinstance(content, str) else str(content[0]["text"])


ROW: Final = Row(
    name="budget", half=Half.LOST, promise="a budget is kept to within one call", run=run
)
