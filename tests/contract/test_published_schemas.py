"""What the operations answer is what published clients were generated for.

`tests/data/openapi` holds the parts of the published descriptions that are offered here. Where
they leave a field optional, this server still spells it out.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
import msgspec
import pytest

from agentsvc.base.values import parse_time
from tests.service import Answer, Client, Service

type Json = dict[str, Any]

DATA: Final = Path(__file__).parents[1] / "data" / "openapi"
PUBLISHED: Final[dict[str, Json]] = {
    file.stem: json.loads(file.read_text()) for file in sorted(DATA.glob("*.json"))
}
NOT_OURS: Final = {
    # Tracing of the hosted service.
    "observability_metadata",
    "observability_tags",
    "observability_span_name",
    # Secrets are never shown, not even by name, and a refusal does not repeat what was sent.
    "custom_secrets",
    "input",
    "ctx",
}
TEXT: Final = {"type": "text", "text": "hello"}
CONVERSATIONS: Final = "/api/v1/app-conversations"
SETTINGS: Final = "/api/v1/settings"
EVENTS: Final = "/api/v1/conversation/{conversation_id}/events"
OLD: Final = "/api/conversations"
SEARCH_QUERY: Final = "?limit=2"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation is called: what follows its path, and what is sent."""

    query: str = ""
    body: Any = None
    path: str = ""
    is_sandbox: bool = False


CALLS: Final[dict[str, Call]] = {
    f"post {CONVERSATIONS}": Call(
        body={
            "initial_message": {"content": [TEXT]},
            "secrets": {"NAME": "value"},
            "plugins": [{"source": "somewhere"}],
            "suggested_task": None,
        }
    ),
    f"get {CONVERSATIONS}": Call(query="?ids={conversation_id}&ids=" + "0" * 32),
    f"get {CONVERSATIONS}/search": Call(query=SEARCH_QUERY),
    f"get {CONVERSATIONS}/count": Call(),
    f"patch {CONVERSATIONS}/{{conversation_id}}": Call(body={"title": "New"}),
    f"delete {CONVERSATIONS}/{{conversation_id}}": Call(),
    f"post {CONVERSATIONS}/{{conversation_id}}/send-message": Call(body={"content": [TEXT]}),
    f"post {CONVERSATIONS}/stream-start": Call(body={}),
    f"get {CONVERSATIONS}/start-tasks": Call(query="?ids={task_id}&ids=" + "0" * 32),
    f"get {CONVERSATIONS}/start-tasks/search": Call(query=SEARCH_QUERY),
    f"get {CONVERSATIONS}/start-tasks/count": Call(),
    "get /api/v1/sandboxes/search": Call(query=SEARCH_QUERY),
    "get /api/v1/sandboxes": Call(query="?id={sandbox_id}&id=unknown"),
    "post /api/v1/sandboxes": Call(),
    "post /api/v1/sandboxes/{sandbox_id}/pause": Call(),
    "post /api/v1/sandboxes/{sandbox_id}/resume": Call(),
    "delete /api/v1/sandboxes/{id}": Call(query="?sandbox_id={sandbox_id}"),
    "get /api/v1/sandboxes/{sandbox_id}/settings/secrets": Call(is_sandbox=True),
    "get /api/v1/sandbox-specs/search": Call(query=SEARCH_QUERY),
    "get /api/v1/sandbox-specs": Call(query="?id=fake&id=unknown"),
    f"get {EVENTS}/search": Call(query=SEARCH_QUERY),
    f"get {EVENTS}/count": Call(),
    f"get {EVENTS}": Call(query="?id={event_id}&id=unknown"),
    "post /api/v1/webhooks/conversations": Call(body={"id": "{conversation_id}"}, is_sandbox=True),
    "post /api/v1/webhooks/events/{conversation_id}": Call(body=[], is_sandbox=True),
    "get /api/v1/web-client/config": Call(),
    f"get {SETTINGS}": Call(),
    f"post {SETTINGS}": Call(body={"agent_settings_diff": {"llm": {"temperature": 0.5}}}),
    f"get {SETTINGS}/agent-schema": Call(),
    f"get {SETTINGS}/conversation-schema": Call(),
    f"get {SETTINGS}/profiles": Call(),
    f"get {SETTINGS}/profiles/{{name}}": Call(),
    f"post {SETTINGS}/profiles/{{name}}": Call(body={"llm": {"model": "openai/other"}}),
    f"delete {SETTINGS}/profiles/{{name}}": Call(),
    f"post {SETTINGS}/profiles/{{name}}/activate": Call(),
    f"post {SETTINGS}/profiles/{{name}}/rename": Call(body={"new_name": "another"}),
    f"post {CONVERSATIONS}/{{conversation_id}}/switch_profile": Call(
        body={"profile_name": "profile-1"}
    ),
    "get /api/v1/secrets/search": Call(),
    "post /api/v1/secrets": Call(body={"name": "OTHER", "value": "value"}),
    "put /api/v1/secrets/{secret_id}": Call(body={"name": "OTHER"}),
    "delete /api/v1/secrets/{secret_id}": Call(),
    "post /api/v1/secrets/git-providers": Call(
        body={"provider_tokens": {"github": {"token": "t"}}}
    ),
    "delete /api/v1/secrets/git-providers": Call(),
    "get /api/v1/users/me": Call(),
    "get /api/v1/skills/search": Call(),
    "get /api/v1/config/models/search": Call(query=SEARCH_QUERY),
    "get /api/v1/config/providers/search": Call(query=SEARCH_QUERY),
    "get /api/keys": Call(),
    "post /api/keys": Call(body={"name": "another"}),
    "delete /api/keys/{key_id}": Call(),
    "get /api/keys/current": Call(),
    "get /api/keys/llm/byor": Call(),
    "post /api/service/users/{user_id}/orgs/{org_id}/api-keys": Call(body={"name": "any"}),
    "post /oauth/device/authorize": Call(body={}),
    "get /alive": Call(),
    "get /health": Call(),
    "get /ready": Call(),
    "get /server_info": Call(),
    "post /api/settings": Call(body={"language": "en"}),
    "get /api/settings": Call(),
    "get /api/options/config": Call(),
    f"post {OLD}": Call(body={"initial_user_msg": "hello"}),
    f"get {OLD}": Call(),
    f"get {OLD}/{{conversation_id}}": Call(),
    f"patch {OLD}/{{conversation_id}}": Call(body={"title": "New"}),
    f"delete {OLD}/{{conversation_id}}": Call(),
    f"get {OLD}/{{conversation_id}}/events": Call(),
    f"get {OLD}/{{conversation_id}}/trajectory": Call(),
    f"get {OLD}/{{conversation_id}}/config": Call(),
    f"post {OLD}/{{conversation_id}}/start": Call(body={"providers_set": ["github"]}),
    f"post {OLD}/{{conversation_id}}/stop": Call(),
    f"get {OLD}/{{conversation_id}}/list-files": Call(),
    f"get {OLD}/{{conversation_id}}/git/changes": Call(),
    f"get {OLD}/{{conversation_id}}/microagents": Call(),
    "get /api/secrets": Call(),
    "put /api/secrets/{secret_id}": Call(body={"name": "NAME", "description": "new"}),
    "delete /api/secrets/{secret_id}": Call(),
    "post /api/add-git-providers": Call(body={"provider_tokens": {"github": {"token": "t"}}}),
    "post /api/unset-provider-tokens": Call(),
    "get /api/options/agents": Call(),
    "get /api/options/security-analyzers": Call(),
}


def _operations() -> Iterator[tuple[str, str]]:
    for version, document in PUBLISHED.items():
        for path, methods in document["paths"].items():
            for method in methods:
                yield version, f"{method} {path}"


OPERATIONS: Final = [found for found in _operations() if found[1] in CALLS]


def _is_time_with_zone(value: object) -> bool:
    return isinstance(value, str) and value.endswith("Z") and parse_time(value) is not None


FORMATS: Final = jsonschema.FormatChecker(["uuid"])
FORMATS.checks("date-time")(_is_time_with_zone)


def _status(version: str, operation: str) -> int:
    """Return the published status of an answer to what is right."""
    method, path = operation.split(" ")
    return min(int(status) for status in PUBLISHED[version]["paths"][path][method]["responses"])


def _problems(version: str, operation: str, status: int, body: Any) -> list[str]:
    """Return where an answer differs from the published description of it."""
    document = PUBLISHED[version]
    method, path = operation.split(" ")
    content = document["paths"][path][method]["responses"][str(status)]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    checker = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    wrong = [f"{error.json_path}: {error.message}" for error in checker.iter_errors(body)]
    return wrong + list(_left_out(schema, body, document, "$"))


def _left_out(schema: Json, body: Any, document: Json, at: str) -> Iterator[str]:
    """Yield the fields that a description has and an answer has not."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = document["components"]["schemas"][name]
    for option in schema.get("anyOf", ()):
        is_meant = jsonschema.Draft202012Validator(
            {**option, "components": document["components"]}
        ).is_valid(body)
        if is_meant:
            yield from _left_out(option, body, document, at)
    if isinstance(body, dict):
        for name, inner in schema.get("properties", {}).items():
            if name in body:
                yield from _left_out(inner, body[name], document, f"{at}.{name}")
            elif name not in NOT_OURS:
                yield f"{at}.{name} is left out"
    if isinstance(body, list) and "items" in schema:
        for number, item in enumerate(body):
            yield from _left_out(schema["items"], item, document, f"{at}[{number}]")


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that has run, with everything that belongs to it."""

    user: Client
    sandbox: Client
    ids: dict[str, str]

    def fill(self, text: str) -> str:
        ids = {**self.ids, "id": self.ids["sandbox_id"]}
        return re.sub(r"\{(\w+)\}", lambda match: ids[match.group(1)], text)

    async def call(self, operation: str, call: Call) -> Answer:
        method, path = operation.split(" ")
        client = self.sandbox if call.is_sandbox else self.user
        options = {} if call.body is None else {"json": self._body(call.body)}
        return await client.request(
            method.upper(), self.fill(path) + self.fill(call.query), **options
        )

    def _body(self, body: Any) -> Any:
        return {"id": self.ids["conversation_id"]} if body == {"id": "{conversation_id}"} else body


@pytest.fixture
async def world(client: Client, service: Service) -> World:
    store = {"custom_secrets": {"NAME": {"secret": "value", "description": "a secret"}}}
    await client.save_settings(secrets_store=store)
    task = await client.start_task("hello", title="A title", trigger="gui", public=False)
    ended = await client.end_of_start(task["id"])
    conversation_id = ended["app_conversation_id"]
    found = await client.wait_for_execution(conversation_id, "finished")
    ids = {
        "task_id": task["id"],
        "conversation_id": conversation_id,
        "sandbox_id": found["sandbox_id"],
        "event_id": (await client.events(conversation_id))[0]["id"],
        "secret_id": "NAME",
        "name": "profile-1",
        "key_id": str((await client.post("/api/keys", json={})).json()["id"]),
        **dict.fromkeys(("user_id", "org_id"), (await client.get("/api/v1/users/me")).json()["id"]),
    }
    await client.post(f"{SETTINGS}/profiles/{ids['name']}")
    sandbox = service.client_with(found["session_api_key"])
    return World(user=client, sandbox=sandbox, ids=ids)


def test_what_is_called_is_published() -> None:
    # The others are called as their examples say: see test_description.
    assert {operation for _, operation in OPERATIONS} == set(CALLS)


@pytest.mark.parametrize(("version", "operation"), OPERATIONS)
async def test_an_answer_is_as_published(world: World, version: str, operation: str) -> None:
    answer = await world.call(operation, CALLS[operation])
    assert answer.status == _status(version, operation), answer.text
    assert _problems(version, operation, answer.status, answer.json()) == []


@pytest.mark.parametrize(
    ("version", "operation"),
    [(version, operation) for version, operation in OPERATIONS if CALLS[operation].body],
)
async def test_a_refusal_is_as_published(world: World, version: str, operation: str) -> None:
    answer = await world.call(operation, msgspec.structs.replace(CALLS[operation], body="wrong"))
    assert answer.status == 422, answer.text
    assert _problems(version, operation, 422, answer.json()) == []
