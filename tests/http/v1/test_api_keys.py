"""API keys of a user, through the socket."""

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.http.keys import DATABASE, DEVICES
from agentsvc.storage.database import Transaction
from tests.service import Answer, Client, Service

KEYS = "/api/keys"
MAX_KEYS = 1000
MEMBERS = {
    "id",
    "name",
    "scope",
    "created_at",
    "last_used_at",
    "not_before",
    "expires_at",
    "org_id",
}


async def make(client: Client, **order: object) -> dict[str, object]:
    answer = await client.post(KEYS, json=order)
    assert answer.status == 200, answer.text
    made: dict[str, object] = answer.json()
    return made


async def me(client: Client) -> Answer:
    return await client.get("/api/v1/users/me")


async def test_a_new_key_is_shown_once_and_works(client: Client, service: Service) -> None:
    made = await make(client, name="laptop")
    assert set(made) == MEMBERS | {"key"}
    listed = (await client.get(KEYS)).json()
    assert set(listed[-1]) == MEMBERS
    assert listed[-1]["name"] == "laptop"
    assert (await service.client_with(str(made["key"])).get(KEYS)).status == 200


async def test_a_key_needs_no_name(client: Client) -> None:
    assert (await make(client))["name"] == "API key"
    assert (await make(client, name=None, org_id="ignored"))["name"] == "API key"


async def test_a_deleted_key_opens_nothing_and_is_not_listed(
    client: Client, service: Service
) -> None:
    made = await make(client, name="lost")
    other = service.client_with(str(made["key"]))
    answer = await client.delete(f"{KEYS}/{made['id']}")
    assert (answer.status, answer.json()) == (200, {"message": "API key deleted successfully"})
    assert (await other.get(KEYS)).status == 401
    assert made["id"] not in [key["id"] for key in (await client.get(KEYS)).json()]


async def test_keys_of_others_are_neither_listed_nor_deleted(
    client: Client, service: Service
) -> None:
    made = await make(client, name="mine")
    bob = await service.make_client("bob", Role.ADMIN)
    assert made["id"] not in [key["id"] for key in (await bob.get(KEYS)).json()]
    answer = await bob.delete(f"{KEYS}/{made['id']}")
    assert (answer.status, answer.json()["detail"]) == (404, "API key not found")


@pytest.mark.parametrize(
    ("key_id", "status"), [("99", 404), ("9" * 300, 404), ("x", 422), ("-1", 422), ("²", 422)]
)
async def test_a_key_that_is_not_there_cannot_be_deleted(
    client: Client, key_id: str, status: int
) -> None:
    assert (await client.delete(f"{KEYS}/{key_id}")).status == status


async def test_a_key_is_valid_in_its_time_only(client: Client, service: Service) -> None:
    later = await make(client, not_before="2999-01-01T00:00:00", expires_at="2999-02-01T00:00:00Z")
    assert later["not_before"] == "2999-01-01T00:00:00.000000Z"
    assert later["expires_at"] == "2999-02-01T00:00:00.000000Z"
    assert (await service.client_with(str(later["key"])).get(KEYS)).status == 401


async def test_a_key_may_be_valid_from_the_first_year_on(client: Client) -> None:
    made = await make(client, not_before="0801-07-27T07:54:05-10:35")
    assert made["not_before"] == "0801-07-27T18:29:05.000000Z"


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"not_before": "0001-01-01T00:00:00+14:00"}, "not_before"),
        ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"not_before": 5}, "not_before"),
        ({"name": "x" * 101}, "name"),
    ],
)
async def test_an_order_that_does_not_fit_is_refused_at_its_field(
    client: Client, order: dict[str, object], field: str
) -> None:
    answer = await client.post(KEYS, json=order)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]


async def test_a_name_nobody_can_print_is_refused(client: Client) -> None:
    assert (await client.post(KEYS, json={"name": "a\nb"})).status == 400


async def test_the_key_of_the_request_is_described(client: Client, service: Service) -> None:
    made = await make(client, name="laptop")
    current = (await service.client_with(str(made["key"])).get(f"{KEYS}/current")).json()
    assert current == {
        "id": made["id"],
        "name": "laptop",
        "org_id": current["user_id"],
        "bound_org_id": None,
        "user_id": current["user_id"],
        "user_name": "admin",
        "role": "admin",
        "scope": "admin",
        "auth_type": "bearer",
    }


async def test_the_service_provides_no_model_key(client: Client) -> None:
    assert (await client.get(f"{KEYS}/llm/byor")).json() == {"key": None}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", KEYS),
        ("POST", KEYS),
        ("DELETE", f"{KEYS}/1"),
        ("GET", f"{KEYS}/current"),
        ("GET", f"{KEYS}/llm/byor"),
    ],
)
async def test_keys_need_a_key(service: Service, method: str, path: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.request(method, path)).status == 401


async def test_a_user_has_as_many_keys_as_can_be_listed_at_once(
    client: Client, service: Service
) -> None:
    sql = """
        WITH RECURSIVE numbers (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM numbers WHERE n < :most)
        INSERT INTO api_keys (user_id, name, hash, prefix, created_at)
        SELECT (SELECT id FROM users), 'one of many', 'no hash ' || n, '', '2026-01-01T00:00:00Z'
        FROM numbers
    """

    async def fill(tx: Transaction) -> None:
        await tx.run(sql, {"most": MAX_KEYS})

    await service.app[DATABASE].write(fill)
    login = await service.app[DEVICES].begin()
    decision = {"user_code": login.user_code}
    for path, body in ((KEYS, {}), ("/oauth/device/verify-authenticated", decision)):
        refused = await client.post(path, json=body)
        assert refused.status == 409
        assert "at most 1000 keys" in refused.json()["detail"]
    assert (
        await client.post("/oauth/device/verify-authenticated", json={**decision, "approve": False})
    ).status == 200
    other = await service.make_client("bob", Role.MEMBER)
    assert (await other.post(KEYS, json={})).status == 200
    [*_, last] = (await client.get(KEYS)).json()
    assert (await client.delete(f"{KEYS}/{last['id']}")).status == 200
    assert (await client.post(KEYS, json={})).status == 200
    # What has expired is in nobody's way.
    assert (await client.post(KEYS, json={})).status == 409
    expire = "UPDATE api_keys SET expires_at = '2026-01-02T00:00:00Z' WHERE name = 'one of many'"
    await service.app[DATABASE].write(lambda tx: tx.run(expire))
    assert (await client.post(KEYS, json={})).status == 200
    assert len((await client.get(KEYS)).json()) == 3
