"""Who may only look changes nothing over a socket or in a sandbox, and is not given its key."""

import asyncio

import aiohttp
import pytest

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.http.keys import KEYRING
from agentsvc.http.routes import READS_ONLY
from tests.http.gateway import conftest as gateway
from tests.http.gateway.steps import Box, session, until
from tests.http.v0.steps import start_running, wait_for_status
from tests.service import Client, Service
from tests.sockets import follow

upstream, world = gateway.upstream, gateway.world
start_gate, gate, box = gateway.start_gate, gateway.gate, gateway.box

CLOSED = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


async def looking(service: Service) -> Client:
    return await service.make_client(scope=KeyScope.READ)


async def test_a_follower_who_may_only_look_is_told_so(client: Client, service: Service) -> None:
    name = await start_running(client)
    looker = await looking(service)
    async with follow(client.base_url, looker.key, name) as follower:
        for action in ("oh_user_action", "oh_action"):
            await follower.say("do harm", name=action)
        await follower.wish("paused")
        await follower.until(lambda _: len(follower.errors) == 3)
        assert set(follower.errors) == {READS_ONLY}
        await (await service.make_client()).post(
            f"/api/conversations/{name}/message", json={"message": "do good"}
        )
        await follower.until_state("finished")
    said = str(await client.events(name))
    assert "do good" in said
    assert "do harm" not in said


async def test_who_may_only_look_wakes_nothing(client: Client, service: Service) -> None:
    name = await start_running(client)
    await client.post(f"/api/conversations/{name}/stop")
    await wait_for_status(client, name, "STOPPED")
    looker = await looking(service)
    async with follow(client.base_url, looker.key, name) as follower:
        await follower.until(lambda frames: frames)
        await follower.say("wake up")
        await follower.until(lambda _: follower.errors)
        found = (await client.get(f"/api/conversations/{name}")).json()
        assert found["status"] == "STOPPED"


async def test_who_may_only_look_is_not_given_the_keys_of_sandboxes(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation()
    name = await start_running(client)
    sandboxes = (await client.get("/api/v1/sandboxes/search")).json()["items"]
    keys = [sandbox["session_api_key"] for sandbox in sandboxes]
    looker = await looking(service)
    for path in (
        "/api/v1/sandboxes/search",
        f"/api/v1/sandboxes?id={sandboxes[0]['id']}",
        "/api/v1/app-conversations/search",
        f"/api/v1/app-conversations/{conversation_id}",
        "/api/conversations",
        f"/api/conversations/{name}",
        f"/api/conversations/{name}/vscode-url",
        "/runtime/list",
    ):
        answer = await looker.get(path)
        assert answer.status == 200, path
        assert [key for key in keys if key in answer.text] == [], path
    revealed = {"Authorization": f"Bearer {looker.key}", "X-Session-API-Key": keys[0]}
    nobody = service.client_with(None)
    answer = await nobody.get("/api/v1/users/me?expose_secrets=true", headers=revealed)
    assert (answer.status, answer.json()["detail"]) == (403, READS_ONLY)


@pytest.mark.parametrize("port", ["agent", "worker_1"])
async def test_who_may_only_look_does_not_pass_to_a_sandbox(box: Box, port: str) -> None:
    looker = await box.service.make_client("owner", Role.MEMBER, scope=KeyScope.READ)
    other = await box.service.make_client("other", Role.MEMBER, scope=KeyScope.READ)
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        answer = await looker.request(method, box.path("/x", port))
        assert (answer.status, answer.json()["code"]) == (403, "not_allowed"), method
        assert answer.json()["detail"] == READS_ONLY
        assert (await other.request(method, box.path("/x", port))).status == 404
    async with session(looker.key) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect(box.url("/ws", port))
        assert caught.value.status == 403
    async with session() as client, client.ws_connect(box.url("/sockets/events/1", port)) as late:
        await late.send_json({"type": "auth", "session_api_key": looker.key})
        assert (await late.receive()).data == 4003
    assert box.upstream.seen == []


async def test_a_sandboxs_own_key_opens_it_whatever_the_users_key_may(box: Box) -> None:
    looker = await box.service.make_client("owner", Role.MEMBER, scope=KeyScope.READ)
    headers = {"X-Session-API-Key": box.key, "Authorization": f"Bearer {looker.key}"}
    nobody = box.service.client_with(None)
    assert (await nobody.get(box.path("/x", "agent"), headers=headers)).status == 200


async def _revoke(service: Service, client: Client) -> None:
    """Revoke a key as a command does: past the API."""
    keys = service.app[KEYRING]
    await keys.revoke_key((await keys.identify(str(client.key))).key_id)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_revoked_key_ends_what_it_opened_in_a_sandbox(box: Box, *, is_late: bool) -> None:
    guest = await box.service.make_client("owner", Role.MEMBER)
    async with (
        session(None if is_late else guest.key) as client,
        client.ws_connect(box.url("/ws")) as ended,
        session(box.owner.key) as mine,
        mine.ws_connect(box.url("/ws")) as kept,
    ):
        if is_late:
            await ended.send_json({"type": "auth", "session_api_key": guest.key})
        await _until_echoed(ended)
        await _revoke(box.service, guest)
        assert (await ended.receive(timeout=30)).type in CLOSED
        await _until_echoed(kept)


async def test_the_key_of_a_sandbox_is_worth_no_more_than_its_user(box: Box) -> None:
    admin = await box.service.make_client("boss")
    users = {one["name"]: one["id"] for one in (await admin.get("/api/v1/users")).json()}
    path = f"/api/v1/users/{users['owner']}"
    keyed = box.service.client_with(box.key)
    for change, back in (
        ({"is_blocked": True}, {"is_blocked": False}),
        ({"role": "viewer"}, {"role": "member"}),
    ):
        async with session(box.key) as client, client.ws_connect(box.url("/ws")) as socket:
            await _until_echoed(socket)
            assert (await admin.patch(path, json=change)).status == 200
            assert (await socket.receive(timeout=30)).type in CLOSED
        answer = await keyed.get(box.path("/x", "agent"))
        assert (answer.status, answer.json()["code"]) == (403, "not_allowed")
        assert (await admin.patch(path, json=back)).status == 200
        await until(lambda: _opens(keyed, box))


async def _opens(client: Client, box: Box) -> bool:
    return (await client.get(box.path("/x", "agent"))).status == 200


async def _until_echoed(socket: aiohttp.ClientWebSocketResponse) -> None:
    await socket.send_str("there?")
    async with asyncio.timeout(30):
        while (said := await socket.receive()).data != "THERE?":
            assert said.type is aiohttp.WSMsgType.TEXT
