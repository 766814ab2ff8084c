"""The published description is one, and every word of it is true of the server."""

import asyncio
import hmac
import io
import json
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import msgspec
import openapi_spec_validator
import pytest
from joserfc.jwk import RSAKey
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from msgspec import UNSET

from agentsvc.agentserver.responses import CommandResult
from agentsvc.app import published_routes
from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import new_id
from agentsvc.http.keys import LOGINS
from agentsvc.http.openapi.fields import SHARED
from agentsvc.http.path_parts import PATH_PARTS, names_in
from agentsvc.http.routes import EXAMPLE_ID, Route, Scope, Undescribed, mounted
from agentsvc.http.streaming import EVENT_STREAM
from agentsvc.settings.fields import GroupingStrategy
from tests.conftest import FAST
from tests.conversations.test_archives import fake_agent
from tests.description import (
    Description,
    Operation,
    description_of,
    example_body,
    example_path,
    undescribed,
)
from tests.fake_agent import FakeAgent
from tests.git_hosts import GitHosts
from tests.http.v1.issuer import Issuer, running_issuer
from tests.service import Client, Service
from tests.streams import open_lines, open_socket

__all__ = ["fake_agent"]

type Json = dict[str, Any]

ROUTES: Final = published_routes(FAST)
DESCRIPTION: Final = description_of(ROUTES)
OPERATIONS: Final = {operation.name: operation for operation in DESCRIPTION.operations()}
GROUPS: Final = sorted(
    {
        operation.about["tags"][0]
        for operation in OPERATIONS.values()
        # `test_model_proxy` asks models, which need one to be there.
        if operation.route.scope is not Scope.MODEL
    }
)

NOT_DESCRIBED: Final = {
    "/sandboxes/{sandbox_id}/{port}{path}": "what is behind it is the sandboxes' own",
    "/{sandbox_id}{path}": "it is the same by a shorter path",
    "/socket.io": "it is a socket with a protocol of its own",
    "": "it is the console, a page",
    "/login": "it is that page, too",
    "/console/{tag}/{path}": "they are the parts of that page",
    "/docs/guide": "it leads to the guide",
    "/docs/guide/{name}": "it is the guide, pages for people",
}
"""What is routed past the table, and why it is not described."""


def by_name(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_it_is_a_valid_description() -> None:
    openapi_spec_validator.validate(DESCRIPTION.document)


def test_everything_says_what_it_is_for_and_what_null_means() -> None:
    assert list(undescribed(DESCRIPTION.document)) == []


def test_no_shared_text_is_there_for_nothing() -> None:
    text = msgspec.json.encode(DESCRIPTION.document)
    assert [name for name, told in SHARED.items() if msgspec.json.encode(told) not in text] == []


def test_every_schema_is_one() -> None:
    for schema in DESCRIPTION.document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_no_component_is_there_for_nothing() -> None:
    text = msgspec.json.encode(DESCRIPTION.document).decode()
    components = DESCRIPTION.document["components"]
    unused = [
        f"{kind}/{name}"
        for kind in ("schemas", "responses", "headers")
        for name in components[kind]
        if f'"#/components/{kind}/{name}"' not in text
    ]
    assert unused == []


def test_every_route_of_the_table_is_described_and_every_described_operation_is_routed(
    service: Service,
) -> None:
    table = mounted(service.app)
    described = {(name.split(" ")[0], name.split(" ")[1]) for name in OPERATIONS}
    assert described == {
        (operation.method, operation.path) for operation in Description(table).operations()
    }
    assert len(described) == len(table)


def test_nothing_else_is_routed_but_what_is_named_here(service: Service) -> None:
    described = {operation.path for operation in OPERATIONS.values()}
    routed = {
        path
        for resource in service.app.router.resources()
        if (path := resource.canonical.removesuffix("/")) not in described
    }
    assert routed <= NOT_DESCRIBED.keys()


@pytest.mark.parametrize("route", ROUTES, ids=by_name)
def test_a_route_says_who_may_call_it_what_it_answers_and_how_it_is_called(route: Route) -> None:
    assert route.scope in Scope
    assert route.answer is not Undescribed
    assert route.summary[0].isupper()
    assert not route.summary.endswith(".")
    assert set(names_in(route.path)) <= PATH_PARTS.keys()
    assert set(route.path_types) <= PATH_PARTS.keys()
    assert all(issubclass(error, AgentsvcError) for error in route.errors)
    assert route.example.body is UNSET or route.body is not None


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_an_example_that_fits_its_description(name: str) -> None:
    operation = OPERATIONS[name]
    for parameter in operation.parameters:
        assert "example" in parameter or not parameter.get("required"), parameter["name"]
        if "example" in parameter and parameter["schema"].get("type") not in ("boolean", "integer"):
            DESCRIPTION.checker(parameter["schema"]).validate(parameter["example"])
    for media, content in operation.contents.items():
        assert "example" in content or not operation.about["requestBody"].get("required"), media
        if "example" in content:
            DESCRIPTION.checker(content["schema"]).validate(content["example"])


def test_operations_have_names_of_their_own() -> None:
    names = [operation.about["operationId"] for operation in OPERATIONS.values()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and name.islower() for name in names)


def test_an_operation_keeps_its_name() -> None:
    named = {name: operation.about["operationId"] for name, operation in OPERATIONS.items()}
    assert named["post /api/v1/app-conversations"] == "v1_post_app_conversations"
    assert (
        named["get /api/conversations/{conversation_id}"] == "v0_get_conversations_conversation_id"
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_says_that_a_request_may_not_be_well_formed(name: str) -> None:
    answer = DESCRIPTION.answer(OPERATIONS[name], 400)
    assert answer is not None
    assert "`malformed_body`" in answer["description"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_says_which_key_opens_it(name: str) -> None:
    operation = OPERATIONS[name]
    keys = {key for one in operation.about["security"] for key in one}
    assert (keys == set()) == (operation.route.scope is Scope.OPEN)
    assert ("basic" in keys) == operation.route.is_page
    assert "401" in operation.about["responses"] or not keys
    assert keys <= DESCRIPTION.document["components"]["securitySchemes"].keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_exactly_the_older_generation_is_deprecated(name: str) -> None:
    operation = OPERATIONS[name]
    is_old = operation.about["operationId"].startswith("v0_")
    assert operation.about.get("deprecated", False) == is_old
    assert is_old == (
        operation.path.startswith("/api/")
        and not operation.path.startswith(
            (
                *("/api/v1/", "/api/keys", "/api/agent-profiles", "/api/shared-"),
                *("/api/automation/", "/api/service/"),
            )
        )
    )


def test_what_is_switched_off_is_not_described() -> None:
    server = msgspec.structs.replace(FAST.server, device_login=False)
    v0 = msgspec.structs.replace(FAST.v0, enabled=False)
    config = msgspec.structs.replace(FAST, server=server, v0=v0)
    left = {route.path for route in published_routes(config)}
    assert "/api/v1/settings" in left
    assert "/api/settings" not in left
    assert not [path for path in left if path.startswith("/oauth")]


async def test_an_answer_that_says_more_or_less_than_is_described_is_noticed(
    client: Client,
) -> None:
    task = await client.start_task("please work")
    path = f"/api/v1/app-conversations/start-tasks?ids={task['id']}"
    operation = OPERATIONS["get /api/v1/app-conversations/start-tasks"]

    def problems(answer: Json) -> list[str]:
        body = msgspec.json.encode([answer])
        return DESCRIPTION.problems(operation, 200, "application/json", body)

    [answer] = (await client.get(path)).json()
    assert problems(answer) == []
    more = {**answer, "more": 1, "request": {**answer["request"], "further": 1}}
    assert [one.rpartition("200 ")[2] for one in problems(more)] == [
        "$[0].request.further is not described",
        "$[0].more is not described",
    ]
    assert len(problems({name: answer[name] for name in answer if name != "status"})) == 1


# Every example is sent


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A server with everything the examples speak of."""

    issuer: Issuer
    service: Service
    agent: FakeAgent
    git_host: str
    user: Client
    sandbox: Client
    granted: dict[str, str]
    real: Json

    def client_for(self, operation: Operation) -> Client:
        match operation.route.scope:
            case Scope.SANDBOX:
                return self.sandbox
            case Scope.PASS | Scope.OPEN:
                return self.service.client_with(None)
            case _:
                return self.user


@pytest.fixture
async def git_hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


@pytest.fixture
async def issuer(service: Service) -> AsyncIterator[Issuer]:
    """Have a provider, and a proxy, by which users sign in."""
    async with running_issuer() as issuer:
        provider = {"issuer": issuer.url, "client_id": "agentsvc", "new_users": True}
        proxy = {"user_header": "X-User", "new_users": True}
        section = {"enabled": True, "providers": {"company": provider}, "proxy": proxy}
        server = msgspec.structs.replace(FAST.server, trusted_proxies=("127.0.0.1",))
        extensions = {**FAST.extensions, "sign_in": section}
        sandboxes = msgspec.structs.replace(FAST.sandboxes, checkpoints=1)
        service.config = msgspec.structs.replace(
            FAST, server=server, extensions=extensions, sandboxes=sandboxes
        )
        await service.restart()
        yield issuer


@pytest.fixture
async def world(
    issuer: Issuer, client: Client, service: Service, fake_agent: FakeAgent, git_hosts: GitHosts
) -> World:
    # No provider is asked by a test.
    await client.save_settings(llm_base_url="http://127.0.0.1:9/v1")
    await client.post("/api/v1/secrets", json={"name": "API_TOKEN", "value": "v"})
    await client.post("/api/v1/settings/profiles/fast")
    token = {"token": "good", "host": git_hosts.url}
    tokens = {"github": token, "gitlab": token}
    await client.post("/api/v1/secrets/git-providers", json={"provider_tokens": tokens})
    await client.start_conversation("please work", conversation_id=EXAMPLE_ID)
    found = await client.wait_for_execution(EXAMPLE_ID, "finished")
    agent = fake_agent.find_conversation(EXAMPLE_ID)
    assert agent is not None
    [sandbox] = fake_agent.sandboxes.values()
    readme = f"{agent.body['workspace']['working_dir']}/README.md"
    sandbox.files[readme] = b"# Example"
    sandbox.git_diffs[readme] = {"modified": "# Example", "original": ""}
    packed = "/packed.tar.gz"
    sandbox.files[packed] = empty_tar()
    fake_agent.on_command("tar -czf", CommandResult(exit_code=0, stdout=packed, stderr=""))
    return World(
        issuer=issuer,
        service=service,
        agent=fake_agent,
        git_host=git_hosts.url,
        user=client,
        sandbox=service.client_with(found["session_api_key"]),
        granted=agent.body["secrets"]["GITHUB_TOKEN"]["headers"],
        real={
            "sandbox_id": found["sandbox_id"],
            "key_id": await _new_key(client),
            **await _new_user(client),
            **await _new_delivery(client),
            **await _new_share(client),
            **await _new_automation(client),
            **await _new_environment(client),
            **await _new_attempts(client),
        },
    )


def empty_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz"):
        pass
    return packed.getvalue()


async def _new_key(client: Client) -> int:
    key: int = (await client.post("/api/keys", json={})).json()["id"]
    return key


async def _new_user(client: Client, name: str = "bob") -> Json:
    user = (await client.post("/api/v1/users", json={"name": name})).json()
    return {"user_id": user["id"], "org_id": user["id"]}


async def _leaving_user(world: World) -> Json:
    return await _new_user(world.user, "carol")


async def _key_of_user(world: World) -> Json:
    path = f"/api/v1/users/{world.real['user_id']}/keys"
    return {"key_id": (await world.user.post(path, json={})).json()["id"]}


async def _new_delivery(client: Client) -> Json:
    """Return a webhook, and a delivery that waits since nobody has this name."""
    order = {"url": "https://receiver.invalid/hook", "changes": ["conversation"]}
    made = (await client.post("/api/v1/webhook-subscriptions", json=order)).json()
    path = f"/api/v1/app-conversations/{EXAMPLE_ID}"
    await client.patch(path, json={"title": "Told of"})
    path = f"/api/v1/webhook-subscriptions/{made['id']}/deliveries"
    delivery = (await client.get(path)).json()["items"][-1]
    return {"subscription_id": made["id"], "delivery_id": delivery["id"]}


async def _new_share(client: Client) -> Json:
    made = await client.post("/api/v1/shares", json={"conversation_id": EXAMPLE_ID})
    return {"share_id": made.json()["id"]}


async def _new_automation(client: Client, kind: str = "manual") -> Json:
    order = {"name": "any", "prompt": "any", "trigger": {"type": kind}}
    made = (await client.post("/api/automation/v1", json=order)).json()
    return {"automation_id": made["id"], "signed_with": made["secret"]}


async def _new_environment(client: Client) -> Json:
    made = await client.post("/api/v1/environments", json={"name": "any"})
    return {"environment_id": made.json()["id"]}


async def _new_attempts(client: Client) -> Json:
    path = "/api/v1/attempts"
    made = (await client.post(path, json={"message": "any", "count": 2})).json()
    while made["attempts"][0]["status"] in ("queued", "starting"):
        await asyncio.sleep(0.02)
        made = (await client.get(f"{path}/{made['id']}")).json()
    return {"attempts_id": made["id"]}


async def _webhook(world: World) -> Json:
    return await _new_automation(world.user, "webhook")


async def _run(world: World) -> Json:
    """Return a run that has not ended yet."""
    path = f"/api/automation/v1/{world.real['automation_id']}/dispatch"
    return {"run_id": (await world.user.post(path)).json()["id"]}


async def _github_app(world: World) -> Json:
    key = RSAKey.generate_key(2048).as_pem(private=True).decode()
    app = {"app_id": "123456", "private_key": key, "host": world.git_host}
    answer = await world.user.put("/api/automation/v1/github-app", json=app)
    assert answer.status == 200, answer.text
    return app


async def _waiting_message(world: World) -> Json:
    """Return a message to a conversation that takes a while to start."""
    world.agent.on_command("git init", CommandResult(exit_code=0, stdout="", stderr=""), seconds=5)
    reference = f"task-{(await world.user.start_task('Begin'))['id']}"
    order = {"content": [{"type": "text", "text": "And then?"}]}
    path = f"/api/v1/conversations/{reference}/pending-messages"
    made = (await world.user.post(path, json=order)).json()
    return {"conversation_id": reference, "message_id": made["id"]}


async def _model_host(world: World) -> Json:
    host = {"host": "models.example.org:11434"}
    await world.user.post("/api/v1/model-hosts", json=host)
    return {"model_host": host["host"]}


async def _key(world: World) -> Json:
    return {"api_key": world.user.key}


async def _link(world: World) -> Json:
    link = await world.service.app[LOGINS].make_link(1)
    return {"token": link.reveal()}


async def _other_agent(world: World) -> Json:
    """Return a conversation with an agent that is not the agent server's own."""
    await world.user.post("/api/v1/settings", json={"agent_settings_diff": {"agent_kind": "acp"}})
    return {"conversation_id": await world.user.start_conversation("please work")}


async def _browser_login(world: World) -> Json:
    login = await world.user.post("/api/v1/logins", json=await _key(world))
    return {"login_id": login.json()["id"]}


async def _sign_in(world: World) -> Json:
    order = {"provider": "company"}
    begun = (await world.user.post("/api/v1/sign-in/attempts", json=order)).json()
    return {**world.issuer.authorize(begun["url"]), "binding": begun["binding"]}


async def _logout(world: World) -> Json:
    return {"logout_token": world.issuer.logout_token()}


async def _login(world: World) -> Json:
    """Return what a program gets that begins a login."""
    login: Json = (await world.user.post("/oauth/device/authorize")).json()
    return login


async def _waiting_login(world: World) -> Json:
    return {"user_code": (await _login(world))["user_code"], "api_key": world.user.key}


async def _approved_login(world: World) -> Json:
    login = await _login(world)
    await world.user.post("/oauth/device/verify-authenticated", json=login)
    return {"device_code": login["device_code"]}


async def _replay(world: World) -> Json:
    """Return a conversation that is being replayed in the sandbox that calls."""
    await world.user.post(
        "/api/v1/settings", json={"sandbox_grouping_strategy": GroupingStrategy.ADD_TO_ANY}
    )
    events = [
        {"action": "message", "source": "user", "args": {"content": "Begin"}},
        {"action": "run", "source": "agent", "args": {"command": "ls"}},
    ]
    answer = await world.user.post("/api/conversations", json={"replay_json": json.dumps(events)})
    name = answer.json()["conversation_id"]
    path = f"/api/v1/app-conversations/start-tasks/search?conversation_id__eq={name}"
    async with asyncio.timeout(world.user.patience):
        while True:
            [task] = (await world.user.get(path)).json()["items"]
            if task["sandbox_id"] == world.real["sandbox_id"]:
                return {"conversation_id": name}
            await asyncio.sleep(0.05)


async def _archive(world: World) -> Json:
    """Return an archive of which it is decided whether it could be saved."""
    path = f"/api/v1/app-conversations/{EXAMPLE_ID}/archives"
    made: Json = (await world.user.post(path)).json()
    async with asyncio.timeout(world.user.patience):
        while True:
            found = (await world.user.get(f"/api/v1/archives/{made['id']}")).json()
            if found["state"] != "saving":
                return {"archive_id": made["id"]}
            await asyncio.sleep(0.05)


async def _checkpoint(world: World) -> Json:
    """Return a checkpoint, of an agent that rests."""
    await world.user.wait_for_execution(EXAMPLE_ID, "finished")
    path = f"/api/v1/app-conversations/{EXAMPLE_ID}/checkpoints"
    return {"checkpoint_id": (await world.user.get(path)).json()["items"][0]["id"]}


async def _runtime(world: World) -> Json:
    """Return a runtime of a session of its own."""
    start = {"image": "fake", "session_id": new_id()}
    made = (await world.user.post("/runtime/start", json=start)).json()
    await world.user.wait_for_sandbox(made["runtime_id"], "RUNNING")
    return {**start, "runtime_id": made["runtime_id"]}


PREPARED: Final[dict[str, Callable[[World], Awaitable[Json]]]] = {
    "delete /api/v1/archives/{archive_id}": _archive,
    "delete /api/v1/conversations/{conversation_id}/pending-messages/{message_id}": _waiting_message,
    "delete /api/v1/logins/{login_id}": _browser_login,
    "delete /api/v1/model-hosts/{model_host}": _model_host,
    "delete /api/v1/users/{user_id}": _leaving_user,
    "delete /api/v1/users/{user_id}/keys/{key_id}": _key_of_user,
    "get /api/v1/archives/{archive_id}": _archive,
    "post /api/automation/v1/events/{automation_id}": _webhook,
    **dict.fromkeys(
        (f"{verb} /api/automation/v1/github-app" for verb in ("get", "put", "delete")), _github_app
    ),
    "post /api/v1/app-conversations/{conversation_id}/rollback": _checkpoint,
    "post /api/v1/app-conversations/{conversation_id}/switch_acp_model": _other_agent,
    "post /api/automation/v1/runs/{run_id}/cancel": _run,
    "post /api/v1/logins": _key,
    "post /api/v1/webhooks/replays/{conversation_id}/chat/completions": _replay,
    "post /api/v1/logins/link": _link,
    "post /api/v1/sign-in": _sign_in,
    "post /api/v1/sign-in/{login_provider}/logout": _logout,
    "post /oauth/device/token": _approved_login,
    "post /oauth/device/verify": _waiting_login,
    "post /oauth/device/verify-authenticated": _waiting_login,
    "get /runtime/runtime/{runtime_id}": _runtime,
    "get /runtime/sessions/{session_id}": _runtime,
    **dict.fromkeys(
        (f"post /runtime/{verb}" for verb in ("start", "pause", "resume", "stop")), _runtime
    ),
}
"""What only a server can give and an example needs."""

LAST: Final = ("/pause", "/resume", "/stop", "/start", "/rename")
ORDER: Final = ("get", "put", "patch", "post", "delete")


def order(operation: Operation) -> tuple[int, int, str]:
    """Put first what changes nothing, and last what takes from the others what they need."""
    last = next((i for i, end in enumerate(LAST, 1) if operation.path.endswith(end)), 0)
    is_all = operation.path.endswith("git-providers")
    return ORDER.index(operation.method), last + 10 * is_all, operation.path


async def send_example(world: World, operation: Operation) -> list[str]:
    problems: list[str] = []
    prepare = PREPARED.get(operation.name)
    for again in range(max(1, len(operation.contents))):
        real = {**world.real, **(await prepare(world) if prepare else {})}
        options = list(example_body(operation, real))[again]
        if operation.route.scope is Scope.PASS:
            options["headers"] = world.granted
        if real["signed_with"] and operation.route.scope is Scope.OPEN:
            body = json.dumps(options["json"]).encode()
            digest = hmac.digest(real["signed_with"].encode(), body, "sha256").hex()
            options["headers"] = {"X-Signature-256": digest}
        if operation.name == "post /api/v1/sign-in/proxy":
            options["headers"] = {"X-User": "carl"}
        client = world.client_for(operation)
        path = example_path(operation, real)
        if operation.route.status == HTTPStatus.SWITCHING_PROTOCOLS:
            async with open_socket(client, path):
                continue
        if operation.route.media == EVENT_STREAM:
            # It has no end; readers hold every part of it to what it should be.
            async with open_lines(client, path) as stream:
                problems += [] if await stream.until("ready") else [f"{operation.name}: no events"]
            continue
        method = operation.method.upper()
        answer = await client.request(method, path, allow_redirects=False, **options)
        if answer.status != operation.route.status:
            problems.append(f"{operation.name}: {answer.status} {answer.text[:500]}")
        media = answer.headers.get("Content-Type", "").partition(";")[0]
        problems += DESCRIPTION.problems(operation, answer.status, media, answer.body)
        if operation.name == "delete /api/keys/{key_id}":
            world.real["key_id"] = await _new_key(world.user)
    return problems


@pytest.mark.parametrize("group", GROUPS)
async def test_the_example_of_each_operation_works_and_its_answer_is_as_described(
    world: World, group: str
) -> None:
    problems: list[str] = []
    for operation in sorted(OPERATIONS.values(), key=order):
        if operation.about["tags"][0] == group:
            problems += await send_example(world, operation)
    assert problems == []
