"""The signed passes with which agents get the tokens of git providers, through the socket."""

from typing import Any

import pytest

from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service

PATH = "/api/v1/webhooks/secrets"
TOKENS = {"github": {"token": "ghp-1"}, "gitlab": {"token": "glp-1"}}


async def start(client: Client, fake_agent: FakeAgent) -> tuple[str, dict[str, Any]]:
    """Return a new conversation and the secrets its agent was given."""
    conversation_id = await client.start_conversation(None)
    found = fake_agent.find_conversation(conversation_id)
    assert found is not None
    secrets: dict[str, Any] = found.body["secrets"]
    return conversation_id, secrets


async def look_up(service: Service, secret: dict[str, Any]) -> Answer:
    """Ask for a secret as an agent server does."""
    assert secret["kind"] == "LookupSecret"
    path = secret["url"].removeprefix(service.url)
    return await service.client_with(None).get(path, headers=secret["headers"])


async def keep_tokens(client: Client, **tokens: Any) -> None:
    answer = await client.post(
        "/api/v1/secrets/git-providers", json={"provider_tokens": tokens or TOKENS}
    )
    assert answer.status == 200, answer.text


async def test_an_agent_gets_each_providers_token_with_the_pass_for_it(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await keep_tokens(client)
    _, secrets = await start(client, fake_agent)
    assert secrets["GITHUB_TOKEN"]["url"] == service.url + PATH
    assert list(secrets["GITHUB_TOKEN"]["headers"]) == ["X-Access-Token"]
    assert secrets["GITHUB_TOKEN"]["headers"] != secrets["GITLAB_TOKEN"]["headers"]
    for name, value in (("GITHUB_TOKEN", "ghp-1"), ("GITLAB_TOKEN", "glp-1")):
        answer = await look_up(service, secrets[name])
        assert (answer.status, answer.text) == (200, value)
        assert answer.headers["Content-Type"].startswith("text/plain")


async def test_a_pass_gives_the_token_that_is_stored_now(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await keep_tokens(client)
    _, secrets = await start(client, fake_agent)
    await keep_tokens(client, github={"token": "ghp-2"})
    assert (await look_up(service, secrets["GITHUB_TOKEN"])).text == "ghp-2"
    answer = await look_up(service, secrets["GITLAB_TOKEN"])
    assert (answer.status, answer.json()["detail"]) == (404, "No such provider")


async def test_a_secret_of_the_user_with_a_tokens_name_wins(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await keep_tokens(client)
    await client.post("/api/v1/secrets", json={"name": "GITHUB_TOKEN", "value": "mine"})
    _, secrets = await start(client, fake_agent)
    assert (await look_up(service, secrets["GITHUB_TOKEN"])).text == "mine"


async def test_a_pass_is_good_while_its_sandbox_runs_and_after_a_restart_of_the_server(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await keep_tokens(client)
    conversation_id, secrets = await start(client, fake_agent)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await service.restart()
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    assert (await look_up(service, secrets["GITHUB_TOKEN"])).status == 401
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert (await look_up(service, secrets["GITHUB_TOKEN"])).text == "ghp-1"
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    assert (await look_up(service, secrets["GITHUB_TOKEN"])).status == 401


@pytest.mark.parametrize("given", ["", "x", "AAAA", "not base64!", "A" * 200])
async def test_what_is_no_pass_opens_nothing(service: Service, given: str) -> None:
    answer = await service.client_with(None).get(PATH, headers={"X-Access-Token": given})
    assert (answer.status, answer.json()["detail"]) == (401, "Unauthorized")


async def test_neither_a_users_nor_a_sandboxs_key_is_a_pass_nor_a_pass_a_key(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await keep_tokens(client)
    conversation_id, secrets = await start(client, fake_agent)
    session_key = (await client.conversation(conversation_id))["session_api_key"]
    for caller in (client, service.client_with(session_key)):
        assert (await caller.get(PATH)).status == 401
    [given] = secrets["GITHUB_TOKEN"]["headers"].values()
    holder = service.client_with(given)
    assert (await holder.get("/api/v1/settings")).status == 401
    assert (await holder.post("/api/v1/webhooks/conversations", json={})).status == 401
