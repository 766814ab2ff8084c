"""Every route of the table is closed to whoever may not use it, and says so in the one shape."""

import msgspec
import pytest
from aiohttp import hdrs

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.app import published_routes
from agentsvc.http.routes import OF_USERS, READS_ONLY, Route, Scope
from agentsvc.http.streaming import EVENT_STREAM
from tests.conftest import FAST
from tests.description import Operation, description_of, example_body, example_path
from tests.service import Answer, Client, Service, login_headers

ROUTES = published_routes(FAST)
OPERATIONS = list(description_of(ROUTES).operations())
LOOKING = (Scope.READ, Scope.ADMIN_READ)
GIVES_UP_ONLY_ITSELF = {("DELETE", "/api/v1/logins/current")}
"""What ends the login that asks for it, and nothing else."""
HAS_SCOPES_INSIDE = {("POST", "/mcp")}
"""What asks each of its tools for the scope, see `test_mcp_server`."""


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one shape of errors."""

    detail: str
    code: str
    request_id: str


def of(*scopes: Scope) -> list[Operation]:
    found = [one for one in OPERATIONS if one.route.scope in scopes]
    assert found
    return found


async def ask(client: Client, operation: Operation, number: int = 0) -> Answer:
    options = list(example_body(operation, {}))[number]
    path = example_path(operation, {})
    return await client.request(operation.method.upper(), path, allow_redirects=False, **options)


async def allowed(client: Client, operations: list[Operation]) -> list[str]:
    """Return the names of the operations that are not refused as they should be."""
    opened = []
    for operation in operations:
        answer = await ask(client, operation)
        if answer.status != 403:
            opened.append(f"{operation.name}: {answer.status}")
            continue
        refused = msgspec.json.decode(answer.body, type=Refused)
        assert refused.code == "not_allowed"
        assert refused.request_id == answer.headers["X-Request-Id"]
    return opened


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_for_who_may_only_look_changes_nothing(route: Route) -> None:
    is_safe = route.method in (hdrs.METH_GET, hdrs.METH_HEAD)
    excepted = GIVES_UP_ONLY_ITSELF | HAS_SCOPES_INSIDE
    if route.scope in OF_USERS and (route.method, route.path) not in excepted:
        assert (route.scope in LOOKING) == is_safe


def test_a_key_that_comes_late_opens_only_what_looks() -> None:
    assert {route.scope for route in ROUTES if route.takes_query_key} == {Scope.READ}


@pytest.mark.parametrize(
    ("role", "scope"),
    [
        (Role.VIEWER, KeyScope.ADMIN),
        (Role.VIEWER, KeyScope.READ),
        (Role.MEMBER, KeyScope.READ),
        (Role.ADMIN, KeyScope.READ),
    ],
)
async def test_who_may_only_look_changes_nothing(
    service: Service, role: Role, scope: KeyScope
) -> None:
    looker = await service.make_client("looker", role, scope=scope)
    assert await allowed(looker, of(Scope.RUN, Scope.MANAGE, Scope.ADMIN)) == []


async def test_who_may_only_look_sees_what_is_theirs(service: Service) -> None:
    looker = await service.make_client("looker", Role.VIEWER, scope=KeyScope.READ)
    for operation in of(Scope.READ):
        if operation.route.media != EVENT_STREAM:
            assert READS_ONLY not in (await ask(looker, operation)).text, operation.name


@pytest.mark.parametrize("role", [Role.ADMIN, Role.MEMBER])
async def test_a_key_for_running_makes_no_keys_and_looks_after_nobody(
    service: Service, role: Role
) -> None:
    runner = await service.make_client("runner", role, scope=KeyScope.RUN)
    assert await allowed(runner, of(Scope.MANAGE, Scope.ADMIN)) == []
    assert (await runner.post("/api/settings", json={"language": "en"})).status == 200


@pytest.mark.parametrize("role", [Role.MEMBER, Role.VIEWER])
async def test_what_is_for_administrators_is_for_nobody_else(service: Service, role: Role) -> None:
    member = await service.make_client("member", role)
    assert await allowed(member, of(Scope.ADMIN, Scope.ADMIN_READ)) == []


async def test_an_administrator_looks_with_a_key_for_looking(service: Service) -> None:
    admin = await service.make_client(scope=KeyScope.READ)
    for operation in of(Scope.ADMIN_READ):
        assert (await ask(admin, operation)).status in (200, 404), operation.name


async def test_a_key_says_what_it_opens(service: Service) -> None:
    admin = await service.make_client()
    made = {
        scope: (await admin.post("/api/keys", json={"scope": scope})).json()
        for scope in KeyScope
        if scope is not KeyScope.SERVICE
    }
    for scope, key in made.items():
        holder = service.client_with(key["key"])
        assert (await holder.get("/api/keys/current")).json()["scope"] == scope == key["scope"]
    assert (await admin.post("/api/keys", json={"name": "as ever"})).json()["scope"] == "admin"
    assert (await admin.post("/api/keys", json={"scope": "root"})).status == 422
    listed = {key["id"]: key["scope"] for key in (await admin.get("/api/keys")).json()}
    assert [listed[key["id"]] for key in made.values()] == ["read", "run", "admin"]


async def test_a_browsers_login_opens_what_its_key_opens(service: Service) -> None:
    looker = await service.make_client("looker", Role.MEMBER, scope=KeyScope.READ)
    login = await looker.post("/api/v1/logins", json={"api_key": looker.key})
    headers = {**login_headers(login), "Origin": service.url}
    nobody = service.client_with(None)

    assert (await nobody.get("/api/settings", headers=headers)).status != 401
    change = await nobody.post("/api/settings", json={"language": "en"}, headers=headers)
    assert (change.status, change.json()["detail"]) == (403, READS_ONLY)
    logout = await nobody.delete("/api/v1/logins/current", headers=headers)
    assert logout.status == 200
    assert (await nobody.get("/api/settings", headers=headers)).status == 401


async def test_who_may_not_make_keys_lets_no_program_in(service: Service) -> None:
    runner = await service.make_client("runner", Role.MEMBER, scope=KeyScope.RUN)
    waiting = (await runner.post("/oauth/device/authorize")).json()
    form = {"user_code": waiting["user_code"], "api_key": runner.key}
    answer = await runner.post("/oauth/device/verify", data=form)
    assert answer.status == 403
    asked = await runner.post(
        "/oauth/device/token",
        data={
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "device_code": waiting["device_code"],
        },
    )
    assert asked.json()["error"] == "authorization_pending"
