"""Services that act for users: what their keys open, make and end, through the socket."""

import asyncio
from typing import Any

import pytest

from agentsvc.accounts.keys import KeyScope, Role
from tests.service import Answer, Client, Service

ME = "/api/v1/users/me"
NAME = {"name": "automation"}


class Caller:
    """A service with a key of its own."""

    def __init__(self, service: Service, key: str) -> None:
        self.nobody = service.client_with(None)
        self.headers = {"X-Service-API-Key": key}

    async def ask(self, user_id: str, org_id: str = "", body: Any = NAME) -> Answer:
        path = f"/api/service/users/{user_id}/orgs/{org_id or user_id}/api-keys"
        return await self.nobody.post(path, json=body, headers=dict(self.headers))

    async def key_of(self, user_id: str) -> str:
        answer = await self.ask(user_id)
        assert answer.status == 200, answer.text
        return str(answer.json()["key"])


async def new_key(admin: Client, **order: str) -> dict[str, Any]:
    answer = await admin.post("/api/keys", json={"name": "service", "scope": "service", **order})
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def me(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(ME)).json()
    return found


@pytest.fixture
async def ann(service: Service) -> Client:
    return await service.make_client("ann", Role.MEMBER)


async def test_a_service_gets_one_key_of_a_user_that_runs_and_manages_nothing(
    client: Client, service: Service, ann: Client
) -> None:
    user = await me(ann)
    caller = Caller(service, (await new_key(client))["key"])
    answers = await asyncio.gather(*(caller.ask(user["id"], user["org_id"]) for _ in range(5)))
    assert {answer.status for answer in answers} == {200}
    [key] = {answer.json()["key"] for answer in answers}
    assert answers[0].json() == {
        "key": key,
        "user_id": user["id"],
        "org_id": user["org_id"],
        "name": "automation",
    }
    acting = service.client_with(key)
    assert (await me(acting))["id"] == user["id"]
    assert (await acting.post("/api/keys", json={})).status == 403
    assert (await acting.post("/api/settings", json={"language": "en"})).status == 200
    [listed] = [one for one in (await ann.get("/api/keys")).json() if one["name"] == "automation"]
    assert listed["scope"] == "run"
    [entry, *_] = (await client.get("/api/v1/audit-log", params={"text": "/api/service"})).json()[
        "items"
    ]
    assert (entry["user_name"], entry["status"]) == ("admin", 200)
    assert user["id"] in entry["subject"]


async def test_a_key_that_the_user_revokes_is_followed_by_another(
    client: Client, service: Service, ann: Client
) -> None:
    user_id = (await me(ann))["id"]
    caller = Caller(service, (await new_key(client))["key"])
    first = await caller.key_of(user_id)
    listed = (await ann.get("/api/keys")).json()[-1]
    assert (await ann.delete(f"/api/keys/{listed['id']}")).status == 200
    second = await caller.key_of(user_id)
    assert second not in ("", first)
    assert (await service.client_with(first).get(ME)).status == 401
    assert (await service.client_with(second).get(ME)).status == 200
    other = Caller(service, (await new_key(client))["key"])
    assert await other.key_of(user_id) not in (first, second)


async def test_a_revoked_service_key_ends_with_all_that_it_has_made(
    client: Client, service: Service, ann: Client
) -> None:
    user_id = (await me(ann))["id"]
    made, other = await new_key(client), await new_key(client)
    caller = Caller(service, made["key"])
    acting = service.client_with(await caller.key_of(user_id))
    kept = service.client_with(await Caller(service, other["key"]).key_of(user_id))
    assert (await acting.get(ME)).status == 200
    # Nobody but whose it is ends what it has made.
    assert (await ann.delete(f"/api/keys/{made['id']}")).status == 404
    assert (await acting.get(ME)).status == 200
    assert (await client.delete(f"/api/keys/{made['id']}")).status == 200
    assert (await acting.get(ME)).status == 401
    assert (await caller.ask(user_id)).status == 401
    assert (await kept.get(ME)).status == 200


async def test_a_service_key_opens_nothing_else(client: Client, service: Service) -> None:
    key = (await new_key(client))["key"]
    wrong = service.client_with(key)
    for path in (ME, "/api/keys", "/api/settings", "/api/v1/users", "/metrics"):
        assert (await wrong.get(path)).status == 401, path
        with_header = await Caller(service, key).nobody.get(
            path, headers={"X-Service-API-Key": key}
        )
        assert with_header.status == 401, path
    user_id = (await me(client))["id"]
    path = f"/api/service/users/{user_id}/orgs/{user_id}/api-keys"
    assert (await wrong.post(path, json=NAME)).status == 401
    nobody = service.client_with(None)
    assert (await nobody.post("/api/v1/logins", json={"api_key": key})).status == 401


async def test_only_administrators_have_service_keys(
    client: Client, service: Service, ann: Client
) -> None:
    refused = await ann.post("/api/keys", json={"scope": "service"})
    assert (refused.status, refused.json()["code"]) == (403, "not_allowed")
    user_id = (await me(ann))["id"].replace("-", "")
    path = f"/api/v1/users/{user_id}"
    assert (await client.post(f"{path}/keys", json={"scope": "service"})).status == 403
    # One who is none any more has none, and one who is blocked neither.
    for change in ({"role": "member"}, {"is_blocked": True}):
        other = await service.make_client(f"other-{len(change)}-{next(iter(change))}", Role.ADMIN)
        caller = Caller(service, (await new_key(other))["key"])
        assert (await caller.ask(user_id)).status == 200
        other_id = (await me(other))["id"].replace("-", "")
        assert (await client.patch(f"/api/v1/users/{other_id}", json=change)).status == 200
        assert (await caller.ask(user_id)).status == 401, change


async def test_other_keys_of_administrators_make_keys_and_those_of_others_do_not(
    client: Client, service: Service, ann: Client
) -> None:
    user_id = (await me(ann))["id"]
    assert (await Caller(service, client.key or "").ask(user_id)).status == 200
    runner = await service.make_client("runner", Role.ADMIN, scope=KeyScope.RUN)
    for lesser in (ann, runner):
        assert (await Caller(service, lesser.key or "").ask(user_id)).status == 403
    assert (await Caller(service, "asvc_" + "x" * 43).ask(user_id)).status == 401
    assert (await Caller(service, "é").ask(user_id)).status == 401
    assert (await Caller(service, "").ask(user_id)).status == 401


@pytest.mark.parametrize(
    ("ids", "body", "status"),
    [
        (("0" * 32, ""), NAME, 404),
        (("..%2f..", ""), NAME, 422),
        (("'%20OR%201=1--", ""), NAME, 422),
        (("9" * 300, ""), NAME, 422),
        (("own", "0" * 32), NAME, 403),
        (("own", "x"), NAME, 422),
        (("own", ""), {}, 422),
        (("own", ""), {"name": ""}, 422),
        (("own", ""), {"name": "a" * 101}, 422),
        (("own", ""), {"name": "a\0b"}, 400),
        (("own", ""), {"name": 7}, 422),
        (("own", ""), [], 422),
        (("own", ""), {"name": "any", "scope": "admin", "role": "admin"}, 200),
    ],
)
async def test_hostile_requests_are_refused(
    client: Client, service: Service, ids: tuple[str, str], body: Any, status: int
) -> None:
    caller = Caller(service, (await new_key(client))["key"])
    own = (await me(client))["id"]
    answer = await caller.ask(own if ids[0] == "own" else ids[0], ids[1], body)
    assert answer.status == status, answer.text
    if status == 200:
        acting = service.client_with(answer.json()["key"])
        assert (await acting.get("/api/keys/current")).json()["scope"] == "run"


async def test_a_service_is_told_that_all_is_full_in_the_words_it_knows(
    client: Client, service: Service, ann: Client
) -> None:
    user_id = (await me(ann))["id"]
    caller = Caller(service, (await new_key(client))["key"])
    acting = service.client_with(await caller.key_of(user_id))
    path = f"/api/v1/users/{user_id.replace('-', '')}/quotas"
    assert (await client.put(path, json={"running_sandboxes": 0})).status == 200
    full, plain = (
        await acting.post("/api/v1/sandboxes"),
        await ann.post("/api/v1/sandboxes"),
    )
    assert (full.status, full.json()["code"]) == (429, "concurrency_limit_reached")
    assert full.json()["detail"] == {
        "error": "CONCURRENCY_LIMIT_REACHED",
        "message": plain.json()["detail"],
    }
    assert "Retry-After" in full.headers
    assert plain.status == 429
    await client.put(path, json={"running_sandboxes": None})
    assert (await acting.post("/api/v1/sandboxes")).status == 200


async def test_keys_go_with_the_administrator_whose_service_made_them(
    client: Client, service: Service, ann: Client
) -> None:
    user_id = (await me(ann))["id"]
    boss = await service.make_client("boss", Role.ADMIN)
    caller = Caller(service, (await new_key(boss))["key"])
    boss_id = (await me(boss))["id"].replace("-", "")
    acting = service.client_with(await caller.key_of(user_id))
    assert (await client.delete(f"/api/v1/users/{boss_id}")).status == 200
    assert (await acting.get(ME)).status == 401
    assert (await caller.ask(user_id)).status == 401


@pytest.mark.parametrize("change", [{"role": "member"}, {"is_blocked": True}])
async def test_keys_end_when_the_administrator_whose_service_made_them_is_none_any_more(
    client: Client, service: Service, ann: Client, change: dict[str, Any]
) -> None:
    user_id = (await me(ann))["id"]
    boss = await service.make_client("boss", Role.ADMIN)
    caller = Caller(service, (await new_key(boss))["key"])
    path = f"/api/v1/users/{(await me(boss))['id'].replace('-', '')}"
    acting = service.client_with(await caller.key_of(user_id))
    assert (await client.patch(path, json=change)).status == 200
    assert (await acting.get(ME)).status == 401
    assert (await ann.get(ME)).status == 200
    # The service goes on with other keys when it may again.
    again = {"role": "admin", "is_blocked": False}
    assert (await client.patch(path, json=again)).status == 200
    assert (await acting.get(ME)).status == 401
    assert (await service.client_with(await caller.key_of(user_id)).get(ME)).status == 200
