"""Sandboxes that rest because nobody used them are woken by who uses them, and by nobody else."""

import asyncio

import aiohttp
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.values import now
from agentsvc.http.keys import SANDBOXES
from agentsvc.sandboxes import Target
from tests.http.gateway.steps import Box

CHAT = "/api/conversations"
TIERS = (Target.PAUSED, Target.RECLAIMED, Target.STOPPED)
SOCKET = {"Upgrade": "websocket"}


async def rests(box: Box, target: Target) -> None:
    """Have a sandbox rest as one that nobody uses."""
    culled = await box.service.app[SANDBOXES].idle.cull(box.id, target, unused_since=now())
    assert culled
    await box.owner.wait_for_sandbox(box.id, "PAUSED")


async def status(box: Box) -> str:
    seen = await box.owner.sandbox(box.id)
    return str((seen or {})["status"])


@pytest.mark.parametrize("target", TIERS)
@pytest.mark.parametrize(
    ("method", "tail", "port"),
    [
        ("GET", "/x", "worker_1"),
        ("GET", "/x", "vscode"),
        ("POST", f"{CHAT}/1/events", "agent"),
        ("GET", "/api/file/download?path=/x", "agent"),
    ],
)
async def test_who_uses_a_sandbox_wakes_it(
    box: Box, target: Target, method: str, tail: str, port: str
) -> None:
    await rests(box, target)
    answers = await asyncio.gather(
        *(box.owner.request(method, box.path(tail, port)) for _ in range(3))
    )
    # It waits until the sandbox runs, and gets there then.
    assert [answer.status for answer in answers] == [200] * 3
    assert [seen.raw_path for seen in box.upstream.seen] == [tail] * 3
    assert await status(box) == "RUNNING"


@pytest.mark.parametrize("target", TIERS)
@pytest.mark.parametrize("whose", ["owner", "sandbox"])
async def test_a_socket_to_a_work_port_wakes_it(box: Box, target: Target, whose: str) -> None:
    await rests(box, target)
    headers = {"X-Session-API-Key": str(box.owner.key) if whose == "owner" else box.key}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(box.url("/ws"), headers=headers) as socket,
    ):
        await socket.send_str("hello")
        assert (await socket.receive_str()) == "hello"
    assert await status(box) == "RUNNING"


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_who_may_not_use_it_does_not_wake_it(box: Box, port: str) -> None:
    await rests(box, Target.PAUSED)
    nobody = box.service.client_with(None)
    stranger = await box.service.make_client("stranger", Role.MEMBER)
    looker = await box.service.make_client("looker", Role.VIEWER)
    wrong = box.service.client_with("asvc_" + "x" * 43)
    for client in (nobody, wrong, stranger, looker):
        for headers in ({}, SOCKET):
            answer = await client.post(box.path("/x", port), headers=headers)
            assert answer.status in {400, 401, 403, 404}, answer.text
            answer = await client.get(box.path("/x?session_api_key=wrong", port), headers=headers)
            assert answer.status in {400, 401, 403, 404}, answer.text
    assert await status(box) == "PAUSED"
    assert box.upstream.seen == []


@pytest.mark.parametrize("path", ["/alive", "/server_info", CHAT, f"{CHAT}/1/events/search"])
async def test_to_look_at_an_agent_wakes_nothing(box: Box, path: str) -> None:
    await rests(box, Target.PAUSED)
    answer = await box.get(path, "agent")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert await status(box) == "PAUSED"


@pytest.mark.parametrize("verb", ["pause", "stop"])
async def test_what_its_user_had_rest_stays_so_and_says_it(box: Box, verb: str) -> None:
    assert (await box.owner.post(f"/api/v1/sandboxes/{box.id}/{verb}")).status == 200
    for method, port in (("GET", "worker_1"), ("POST", "agent")):
        answer = await box.owner.request(method, box.path("/x", port))
        assert answer.status == 409
        assert "The sandbox is paused. Resume it" in answer.json()["detail"]
    assert await status(box) == "PAUSED"
    assert box.upstream.seen == []
