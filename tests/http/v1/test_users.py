"""The user who asks, through the socket."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.values import parse_uuid
from tests.git_hosts import GitHosts
from tests.service import Answer, Client, Service

ME = "/api/v1/users/me"
GIT_INFO = "/api/v1/users/git-info"
EXPOSED = f"{ME}?expose_secrets=true"


async def session_key(client: Client) -> tuple[str, str]:
    """Return the key and the id of a running sandbox of the user."""
    conversation = await client.conversation(await client.start_conversation(None))
    return conversation["session_api_key"], conversation["sandbox_id"]


async def ask_exposed(service: Service, client: Client, key: str | None) -> Answer:
    """Ask as the SDK's workspace does: the user's key as bearer, the sandbox's in its header."""
    nobody = await service.make_client(None)
    headers = {"Authorization": f"Bearer {client.key}"}
    if key is not None:
        headers["X-Session-API-Key"] = key
    return await nobody.get(EXPOSED, headers=headers)


async def test_a_user_has_the_settings_in_both_shapes(client: Client) -> None:
    me = (await client.get(ME)).json()
    assert parse_uuid(me["id"]) is not None
    assert (me["role"], me["org_id"], me["org_name"]) == ("admin", me["id"], "admin")
    assert me["permissions"] == ["view_automations", "manage_automations"]
    assert (me["llm_model"], me["llm_api_key"]) == ("openai/scripted", None)
    assert me["agent_settings"]["llm"]["model"] == "openai/scripted"
    assert me["agent_settings"]["llm"]["api_key"] is None
    assert not [name for name in me if name.endswith("_set")]


async def test_a_user_without_settings_is_one_too(service: Service) -> None:
    newcomer = await service.make_client("newcomer", Role.MEMBER)
    me = await newcomer.get(ME)
    assert (me.status, me.json()["llm_model"], me.json()["role"]) == (200, None, "member")


async def test_secrets_are_shown_to_a_sandbox_of_the_user(client: Client, service: Service) -> None:
    await client.post("/api/v1/settings/profiles/one")
    await client.save_settings(
        search_api_key="search-1",
        mcp_config={
            "sse_servers": [{"url": "http://a", "api_key": "tool-1"}],
            "stdio_servers": [{"name": "s", "command": "c", "env": {"A": "env-1"}}],
        },
    )
    key, _ = await session_key(client)
    answer = await ask_exposed(service, client, key)
    me: dict[str, Any] = answer.json()
    assert answer.status == 200
    assert (me["llm_api_key"], me["search_api_key"]) == ("model-key-1", "search-1")
    assert me["agent_settings"]["llm"]["api_key"] == "model-key-1"
    assert me["llm_profiles"]["profiles"]["one"]["api_key"] == "model-key-1"
    assert me["mcp_config"]["sse_servers"][0]["api_key"] == "tool-1"
    assert me["mcp_config"]["stdio_servers"][0]["env"] == {"A": "env-1"}
    servers = me["agent_settings"]["mcp_config"]
    assert servers["sse_0"]["headers"] == {"Authorization": "Bearer tool-1"}


@pytest.mark.parametrize("key", [None, "wrong", "ü"])
async def test_secrets_are_not_shown_without_a_sandbox(
    client: Client, service: Service, key: str | None
) -> None:
    answer = await ask_exposed(service, client, key)
    assert answer.status == 401
    assert "model-key-1" not in answer.text


async def test_the_key_of_the_user_is_not_that_of_a_sandbox(client: Client) -> None:
    assert (await client.get(EXPOSED)).status == 401


async def test_secrets_are_not_shown_to_the_sandbox_of_another(
    client: Client, service: Service
) -> None:
    other = await service.make_client("bob", Role.ADMIN)
    await other.save_settings()
    key, _ = await session_key(other)
    answer = await ask_exposed(service, client, key)
    assert (answer.status, answer.json()["code"]) == (403, "not_allowed")


async def test_secrets_are_not_shown_to_a_sandbox_that_is_paused(
    client: Client, service: Service
) -> None:
    key, sandbox_id = await session_key(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert (await ask_exposed(service, client, key)).status == 401


async def test_the_key_of_a_sandbox_alone_is_nobodys(client: Client, service: Service) -> None:
    key, _ = await session_key(client)
    assert (await service.client_with(key).get(ME)).status == 401


async def test_a_flag_that_is_none_is_refused(client: Client) -> None:
    assert (await client.get(f"{ME}?expose_secrets=perhaps")).status == 422


# The user at the git provider


async def store(client: Client, host: str, *providers: str, token: str = "good") -> None:  # noqa: S107  # a test's
    tokens = {provider: {"token": token, "host": host} for provider in providers}
    answer = await client.post("/api/settings", json={"secrets_store": {"provider_tokens": tokens}})
    assert answer.status == 200, answer.text


async def test_without_a_provider_there_is_nobody_to_describe(client: Client) -> None:
    answer = await client.get(GIT_INFO)
    assert (answer.status, answer.json()["detail"]) == (403, "Git provider not connected")


async def test_the_user_at_the_provider_is_described(client: Client, git_hosts: GitHosts) -> None:
    await store(client, git_hosts.url, "github")
    assert (await client.get(GIT_INFO)).json() == {
        "id": "583231",
        "login": "octocat",
        "avatar_url": "https://avatars.githubusercontent.com/u/583231?v=4",
        "company": "@github",
        "name": "The Octocat",
        "email": None,
    }


async def test_the_first_provider_that_answers_counts(
    client: Client, git_hosts: GitHosts, unreachable_url: str
) -> None:
    await store(client, unreachable_url, "github")
    await store(client, git_hosts.url, "gitlab")
    assert (await client.get(GIT_INFO)).json()["login"] == "john_smith"


async def test_a_token_that_is_no_longer_good_is_unauthorized(
    client: Client, git_hosts: GitHosts
) -> None:
    await store(client, git_hosts.url, "github", token="revoked")  # noqa: S106  # a test's
    answer = await client.get(GIT_INFO)
    assert answer.status == 401
    assert "valid github token" in answer.json()["detail"]


async def test_a_provider_that_does_not_answer_is_a_bad_gateway(
    client: Client, unreachable_url: str
) -> None:
    await store(client, unreachable_url, "github")
    answer = await client.get(GIT_INFO)
    assert (answer.status, answer.json()["code"]) == (502, "git_provider_unavailable")
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize("path", [ME, GIT_INFO])
async def test_a_user_needs_a_key(service: Service, path: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.get(path)).status == 401
