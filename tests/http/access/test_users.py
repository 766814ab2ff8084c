"""Administrators look after users and their keys; one user never sees another's."""

from typing import Any

import pytest

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.app import published_routes
from agentsvc.base.values import dashed, new_id, parse_uuid
from agentsvc.http.path_parts import names_in
from agentsvc.http.routes import EXAMPLE_ID, Scope
from tests.conftest import FAST
from tests.description import Operation, description_of, example_body, example_path
from tests.service import Client, Service, login_headers
from tests.streams import open_lines

USERS = "/api/v1/users"
OPERATIONS = list(description_of(published_routes(FAST)).operations())


@pytest.fixture
async def boss(service: Service) -> Client:
    return await service.make_client()


async def make_user(boss: Client, name: str, role: Role = Role.MEMBER) -> dict[str, Any]:
    answer = await boss.post(USERS, json={"name": name, "role": role})
    assert answer.status == 201, answer.text
    user: dict[str, Any] = answer.json()
    return user


async def make_key(boss: Client, user: dict[str, Any], **order: Any) -> dict[str, Any]:
    answer = await boss.post(f"{USERS}/{user['id']}/keys", json=order)
    assert answer.status == 200, answer.text
    key: dict[str, Any] = answer.json()
    return key


async def test_there_is_one_administrator_as_ever(boss: Client) -> None:
    [user] = (await boss.get(USERS)).json()
    assert (user["name"], user["role"], user["blocked_at"]) == ("admin", "admin", None)
    assert (await boss.get(f"{USERS}/{user['id']}")).json() == user
    me = (await boss.get(f"{USERS}/me")).json()
    assert (await boss.get(f"{USERS}/{me['id']}")).json() == user
    assert (await boss.get(f"{USERS}/{me['id']}/usage")).status == 200


async def test_a_user_is_made_with_a_key_and_changed(boss: Client, service: Service) -> None:
    ann = await make_user(boss, "ann", Role.VIEWER)
    key = await make_key(boss, ann, name="laptop", scope=KeyScope.RUN)
    holder = service.client_with(key["key"])
    settings = {"language": "en"}
    assert (await holder.post("/api/settings", json=settings)).status == 403

    path = f"{USERS}/{ann['id']}"
    changed = await boss.patch(path, json={"role": "member", "name": "anna"})
    assert changed.json() == {**ann, "role": "member", "name": "anna"}
    assert (await holder.post("/api/settings", json=settings)).status == 200
    [listed] = (await boss.get(f"{path}/keys")).json()
    assert (listed["id"], listed["scope"], listed["name"]) == (key["id"], "run", "laptop")
    assert listed["last_used_at"] is not None
    assert (await boss.delete(f"{path}/keys/{key['id']}")).status == 200
    assert (await holder.get("/api/settings")).status == 401
    assert (await boss.get(f"{path}/keys")).json() == []


async def test_a_blocked_user_is_out_until_let_in_again(boss: Client, service: Service) -> None:
    ann = await make_user(boss, "ann")
    path = f"{USERS}/{ann['id']}"
    holder = service.client_with((await make_key(boss, ann))["key"])
    login = await holder.post("/api/v1/logins", json={"api_key": holder.key})
    cookie = login_headers(login)
    browser = service.client_with(None)
    async with open_lines(holder, "/api/v1/events/stream") as stream:
        await stream.until("ready")
        blocked = (await boss.patch(path, json={"is_blocked": True})).json()
        assert (await stream.rest())[-1].data == {"reason": "not_authenticated"}
    assert blocked["blocked_at"] is not None
    assert (await boss.patch(path, json={"is_blocked": True})).json() == blocked
    assert (await holder.get("/api/keys")).status == 401
    assert (await browser.get("/api/keys", headers=cookie)).status == 401
    assert (await boss.patch(path, json={"is_blocked": False})).json() == ann
    assert (await holder.get("/api/keys")).status == 200
    assert (await browser.get("/api/keys", headers=cookie)).status == 200


REFUSALS: list[tuple[str, str, Any, int]] = [
    ("POST", "", {"name": "admin"}, 409),
    ("POST", "", {"name": "a\tb"}, 400),
    ("POST", "", {"name": ""}, 422),
    ("POST", "", {"name": "ann", "role": "root"}, 422),
    ("PATCH", "/{me}", {"role": "member"}, 409),
    ("PATCH", "/{me}", {"is_blocked": True}, 409),
    ("PATCH", "/{me}", {"name": "x" * 101}, 422),
    ("PATCH", f"/{EXAMPLE_ID}", {"role": "member"}, 404),
    ("GET", f"/{EXAMPLE_ID}", None, 404),
    ("GET", f"/{EXAMPLE_ID}/keys", None, 404),
    ("POST", f"/{EXAMPLE_ID}/keys", {}, 404),
    ("DELETE", "/{me}/keys/99", None, 404),
    ("DELETE", f"/{EXAMPLE_ID}/keys/1", None, 404),
    ("DELETE", "/{me}/keys/first", None, 422),
]


async def test_what_cannot_be_done_is_said(boss: Client) -> None:
    [me] = (await boss.get(USERS)).json()
    for method, path, body, status in REFUSALS:
        options = {} if body is None else {"json": body}
        answer = await boss.request(method, USERS + path.replace("{me}", me["id"]), **options)
        assert answer.status == status, (method, path, body, answer.text)
    assert (await boss.get(USERS)).json() == [me]


async def _things_of(client: Client) -> dict[str, Any]:
    """Return the ids of what a user has, by what they are called in paths."""
    conversation_id = await client.start_conversation()
    found = await client.conversation(conversation_id)
    archive = await client.post(f"/api/v1/app-conversations/{conversation_id}/archives")
    order = {"url": "https://receiver.invalid/hook", "changes": ["conversation"]}
    hook = (await client.post("/api/v1/webhook-subscriptions", json=order)).json()
    await client.patch(f"/api/v1/app-conversations/{conversation_id}", json={"title": "Told"})
    path = f"/api/v1/webhook-subscriptions/{hook['id']}/deliveries"
    start = {"image": "fake", "session_id": EXAMPLE_ID}
    runtime = (await client.post("/runtime/start", json=start)).json()
    environment = await client.post("/api/v1/environments", json={"name": "any"})
    attempts = await client.post("/api/v1/attempts", json={"message": "any", "count": 2})
    return {
        "attempts_id": attempts.json()["id"],
        "environment_id": environment.json()["id"],
        "conversation_id": conversation_id,
        "sandbox_id": found["sandbox_id"],
        "archive_id": archive.json()["id"],
        # Whose conversation it is in comes first.
        "message_id": new_id(),
        "subscription_id": hook["id"],
        "delivery_id": (await client.get(path)).json()["items"][-1]["id"],
        "key_id": (await client.post("/api/keys", json={})).json()["id"],
        "login_id": (await client.post("/api/v1/logins", json={"api_key": client.key})).json()[
            "id"
        ],
        "runtime_id": runtime["runtime_id"],
        "session_id": EXAMPLE_ID,
    }


def _names_a_thing(operation: Operation, things: dict[str, Any]) -> bool:
    in_body = operation.path.startswith("/runtime/") and not operation.path.endswith("/start")
    of_user = operation.route.scope in (Scope.READ, Scope.RUN, Scope.MANAGE)
    return of_user and (bool(set(names_in(operation.route.path)) & things.keys()) or in_body)


AS_IF_EMPTY = {
    "delete /api/conversations/{conversation_id}",
    "get /api/conversations/{conversation_id}",
    "get /api/v1/app-conversations/{conversation_id}/file",
    "get /api/v1/conversation/{conversation_id}/events",
    "get /api/v1/conversation/{conversation_id}/events/count",
    "get /api/v1/conversation/{conversation_id}/events/search",
    "get /runtime/list",
    "get /runtime/sessions/batch",
    "post /api/conversations/{conversation_id}/stop",
}
"""What clients of old expect to be answered otherwise than by 404, be there nothing at all."""


async def _answers(client: Client, operation: Operation, ids: dict[str, Any]) -> list[Any]:
    """Return status and text of what is answered, without what differs each time."""
    answers = []
    for options in example_body(operation, ids):
        path = example_path(operation, ids)
        answer = await client.request(operation.method.upper(), path, **options)
        text = answer.text.replace(answer.headers["X-Request-Id"], "")
        for name, value in ids.items():
            shown = str(value)
            text = text.replace(dashed(shown) if parse_uuid(shown) else shown, name)
            text = text.replace(shown, name)
        answers.append((answer.status, text))
    return answers


async def test_what_is_another_users_is_not_there(client: Client, service: Service) -> None:
    things = await _things_of(client)
    nothing = {name: 99 if name == "key_id" else new_id() for name in things}
    stranger = await service.make_client("stranger", Role.ADMIN)
    await stranger.save_settings()
    asked = [one for one in OPERATIONS if _names_a_thing(one, things)]
    assert set().union(*(names_in(one.route.path) for one in asked)) == things.keys()

    found = set()
    for operation in asked:
        answers = await _answers(stranger, operation, things)
        assert answers == await _answers(stranger, operation, nothing), operation.name
        if {status for status, _ in answers} != {404}:
            found.add(operation.name)
    assert found == AS_IF_EMPTY
    left = await client.conversation(things["conversation_id"])
    assert left["sandbox_status"] == "RUNNING"
