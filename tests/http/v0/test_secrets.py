"""Secrets, git providers and options of the older generation, through the socket."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.service import Answer, Client, Service

PATH = "/api/secrets"


async def add(client: Client, name: str = "A_B", **fields: Any) -> Answer:
    return await client.post(PATH, json={"name": name, "value": "v", **fields})


async def shown(client: Client) -> list[dict[str, Any]]:
    answer = await client.get(PATH)
    assert answer.status == 200
    found: list[dict[str, Any]] = answer.json()["custom_secrets"]
    return found


async def value_of(service: Service, client: Client, name: str) -> str:
    """Return what a sandbox of the user gets for a name."""
    found = await client.conversation(await client.start_conversation(None))
    sandbox = service.client_with(found["session_api_key"])
    path = f"/api/v1/sandboxes/{found['sandbox_id']}/settings/secrets/{name}"
    answer = await sandbox.get(path)
    assert answer.status == 200, answer.text
    return answer.text


async def test_a_secret_is_kept_and_never_shown(client: Client, service: Service) -> None:
    assert await shown(client) == []
    answer = await add(client, value="the-value")
    assert (answer.status, answer.json()) == (201, {"message": "Secret created successfully"})
    assert await shown(client) == [{"name": "A_B", "description": ""}]
    assert await value_of(service, client, "A_B") == "the-value"


async def test_a_secret_is_not_overwritten(client: Client, service: Service) -> None:
    await add(client, value="first")
    answer = await add(client, value="second")
    assert (answer.status, answer.json()["message"]) == (400, "Secret A_B already exists")
    assert await value_of(service, client, "A_B") == "first"


async def test_a_secret_gets_another_name_and_keeps_its_value(
    client: Client, service: Service
) -> None:
    await add(client, value="the-value")
    answer = await client.request("PUT", f"{PATH}/A_B", json={"name": "A_C", "description": "dd"})
    assert (answer.status, answer.json()) == (200, {"message": "Secret updated successfully"})
    assert await shown(client) == [{"name": "A_C", "description": "dd"}]
    assert await value_of(service, client, "A_C") == "the-value"


async def test_a_secret_gets_a_description_under_its_name(client: Client) -> None:
    await add(client, description="old")
    await client.request("PUT", f"{PATH}/A_B", json={"name": "A_B", "description": "new"})
    assert await shown(client) == [{"name": "A_B", "description": "new"}]


async def test_a_secret_does_not_take_the_name_of_another(client: Client) -> None:
    await add(client)
    await add(client, "OTHER")
    answer = await client.request("PUT", f"{PATH}/A_B", json={"name": "OTHER"})
    assert (answer.status, answer.json()["message"]) == (400, "Secret OTHER already exists")
    assert [secret["name"] for secret in await shown(client)] == ["A_B", "OTHER"]


async def test_a_secret_is_forgotten_once(client: Client) -> None:
    await add(client)
    answer = await client.delete(f"{PATH}/A_B")
    assert (answer.status, answer.json()) == (200, {"message": "Secret deleted successfully"})
    answer = await client.delete(f"{PATH}/A_B")
    assert (answer.status, answer.json()["error"]) == (404, "Secret with ID A_B not found")


async def test_an_unknown_secret_is_not_changed(client: Client) -> None:
    answer = await client.request("PUT", f"{PATH}/zz", json={"name": "Q"})
    assert (answer.status, answer.json()["error"]) == (404, "Secret with ID zz not found")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "C"},
        {"value": "v"},
        {"name": "bad name", "value": "v"},
        {"name": "C", "value": ""},
        {"name": "C", "value": 1},
        {"name": "C" * 300, "value": "v"},
        {"name": "LLM_KEY", "value": "v"},
    ],
)
async def test_a_secret_no_sandbox_can_take_is_refused(
    client: Client, body: dict[str, Any]
) -> None:
    assert (await client.post(PATH, json=body)).status == 422
    assert await shown(client) == []


async def test_a_secret_gets_no_name_that_no_sandbox_can_take(client: Client) -> None:
    await add(client)
    answer = await client.request("PUT", f"{PATH}/A_B", json={"name": "bad name"})
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, ["body", "name"])


async def test_users_have_secrets_of_their_own(client: Client, service: Service) -> None:
    await add(client)
    other = await service.make_client("other", Role.MEMBER)
    assert await shown(other) == []
    assert (await other.delete(f"{PATH}/A_B")).status == 404
    assert (await add(other)).status == 201


async def store(client: Client, tokens: Any) -> Answer:
    return await client.post("/api/add-git-providers", json={"provider_tokens": tokens})


async def hosts(client: Client) -> Any:
    return (await client.get("/api/settings")).json()["provider_tokens_set"]


async def test_provider_tokens_are_kept_and_forgotten(client: Client) -> None:
    answer = await store(client, {"github": {"token": "t", "host": "git.example"}})
    assert (answer.status, answer.json()) == (200, {"message": "Git providers stored"})
    assert await hosts(client) == {"github": "git.example"}
    answer = await client.post("/api/unset-provider-tokens")
    assert (answer.status, answer.json()) == (200, {"message": "Unset Git provider tokens"})
    assert await hosts(client) == {}


async def test_an_empty_token_keeps_the_stored_one(client: Client, service: Service) -> None:
    await store(client, {"github": {"token": "the-token"}, "gitlab": {"token": "t"}})
    await store(client, {"github": {"token": "", "host": "git.example"}})
    assert await hosts(client) == {"github": "git.example"}
    assert await value_of(service, client, "github_token") == "the-token"


@pytest.mark.parametrize("tokens", [{"svn": {"token": "t"}}, {"github": 1}, [], None])
async def test_tokens_that_do_not_fit_are_refused(client: Client, tokens: Any) -> None:
    assert (await store(client, tokens)).status == 422


async def test_a_front_end_learns_what_its_user_can_choose(client: Client) -> None:
    models = await client.get("/api/options/models")
    assert models.status == 200
    assert models.json() == sorted(set(models.json()))
    assert "openai/gpt-4o" in models.json()
    agents = await client.get("/api/options/agents")
    assert (agents.status, agents.json()) == (200, ["CodeActAgent"])
    analyzers = await client.get("/api/options/security-analyzers")
    assert (analyzers.status, analyzers.json()) == (200, ["llm"])


async def test_settings_are_not_reset_any_more(client: Client) -> None:
    answer = await client.post("/api/reset-settings")
    assert answer.status == 410
    assert answer.json()["error"] == "Reset settings functionality has been removed."
    assert (await client.get("/api/settings")).status == 200
