"""Secrets of a user and tokens of git providers, through the socket."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.git_hosts import GitHosts
from tests.service import Answer, Client, Service

SECRETS = "/api/v1/secrets"
PROVIDERS = f"{SECRETS}/git-providers"


async def keep(client: Client, name: str, value: str = "value", **more: Any) -> Answer:
    return await client.post(SECRETS, json={"name": name, "value": value, **more})


async def names(client: Client, query: str = "") -> list[str]:
    page = (await client.get(f"{SECRETS}/search{query}")).json()
    return [item["name"] for item in page["items"]]


async def seen_in_sandbox(client: Client, service: Service, name: str) -> Answer:
    """Return what a sandbox of the user gets for a secret."""
    conversation = await client.conversation(await client.start_conversation(None))
    sandbox = service.client_with(conversation["session_api_key"])
    path = f"/api/v1/sandboxes/{conversation['sandbox_id']}/settings/secrets/{name}"
    return await sandbox.get(path)


async def test_a_secret_is_kept_and_its_value_never_shown(client: Client) -> None:
    answer = await keep(client, "DEPLOY_KEY", "never-shown", description="for releases")
    assert (answer.status, answer.json()) == (201, {"message": "Secret created successfully"})
    page = await client.get(f"{SECRETS}/search")
    assert page.json() == {
        "items": [{"name": "DEPLOY_KEY", "description": "for releases"}],
        "next_page_id": None,
    }
    assert "never-shown" not in page.text


async def test_keeping_a_secret_again_replaces_it(client: Client, service: Service) -> None:
    await keep(client, "A", "1", description="old")
    assert (await keep(client, "A", "2")).status == 201
    assert (await client.get(f"{SECRETS}/search")).json()["items"] == [
        {"name": "A", "description": None}
    ]
    assert (await seen_in_sandbox(client, service, "A")).text == "2"


async def test_secrets_are_found_by_a_part_of_the_name(client: Client) -> None:
    for name in ("DEPLOY_KEY", "OTHER", "key_2"):
        await keep(client, name)
    assert await names(client, "?name__contains=key") == ["DEPLOY_KEY", "key_2"]


async def test_secrets_come_in_pages(client: Client) -> None:
    for name in ("C", "A", "B"):
        await keep(client, name)
    first = (await client.get(f"{SECRETS}/search?limit=2")).json()
    assert [item["name"] for item in first["items"]] == ["A", "B"]
    second = await client.get(f"{SECRETS}/search?limit=2&page_id={first['next_page_id']}")
    assert second.json() == {"items": [{"name": "C", "description": None}], "next_page_id": None}


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "page_id=x"])
async def test_a_page_that_cannot_be_is_refused(client: Client, query: str) -> None:
    assert (await client.get(f"{SECRETS}/search?{query}")).status == 422


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"name": "A"}, ["body", "value"]),
        ({"value": "x"}, ["body", "name"]),
        ({"name": "1A", "value": "x"}, ["body", "name"]),
        ({"name": "A B", "value": "x"}, ["body", "name"]),
        ({"name": "LLM_KEY", "value": "x"}, ["body", "name"]),
        ({"name": "A", "value": ""}, ["body", "value"]),
        ({"name": "A", "value": "a\0b"}, ["body", "value"]),
        ({"name": "A", "value": "x" * 70_000}, ["body", "value"]),
    ],
)
async def test_a_secret_no_sandbox_can_take_is_refused(
    client: Client, body: dict[str, str], loc: list[str]
) -> None:
    answer = await client.post(SECRETS, json=body)
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, loc)


async def test_a_renamed_secret_keeps_its_value(client: Client, service: Service) -> None:
    await keep(client, "A", "value-a", description="old")
    answer = await client.request("PUT", f"{SECRETS}/A", json={"name": "B"})
    assert (answer.status, answer.json()) == (200, {"message": "Secret updated successfully"})
    assert (await client.get(f"{SECRETS}/search")).json()["items"] == [
        {"name": "B", "description": ""}
    ]
    assert (await seen_in_sandbox(client, service, "B")).text == "value-a"


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        ("X", {"name": "Y"}, 404, "Secret with ID X not found"),
        ("A", {"name": "B"}, 400, None),
        ("A", {"name": "1"}, 422, None),
        ("A", {}, 422, None),
    ],
)
async def test_a_secret_cannot_be_renamed_to_anything(
    client: Client, path: str, body: Any, status: int, detail: str | None
) -> None:
    for name in ("A", "B"):
        await keep(client, name)
    answer = await client.request("PUT", f"{SECRETS}/{path}", json=body)
    assert answer.status == status
    assert detail in (None, answer.json()["detail"])
    assert await names(client) == ["A", "B"]


async def test_a_deleted_secret_is_gone(client: Client) -> None:
    await keep(client, "A")
    answer = await client.delete(f"{SECRETS}/A")
    assert (answer.status, answer.json()) == (200, {"message": "Secret deleted successfully"})
    assert await names(client) == []
    again = await client.delete(f"{SECRETS}/A")
    assert (again.status, again.json()["detail"]) == (404, "Secret with ID A not found")


async def test_both_generations_see_the_same_secrets(client: Client) -> None:
    await keep(client, "A", description="new")
    assert (await client.get("/api/secrets")).json() == {
        "custom_secrets": [{"name": "A", "description": "new"}]
    }


async def test_users_have_secrets_of_their_own(client: Client, service: Service) -> None:
    await keep(client, "A")
    other = await service.make_client("bob", Role.MEMBER)
    assert await names(other) == []
    assert (await other.delete(f"{SECRETS}/A")).status == 404


# Git providers


async def hosts(client: Client) -> dict[str, str | None]:
    settings = (await client.get("/api/v1/settings")).json()
    found: dict[str, str | None] = settings["provider_tokens_set"]
    return found


async def store(client: Client, **tokens: Any) -> Answer:
    return await client.post(PROVIDERS, json={"provider_tokens": tokens})


@pytest.mark.usefixtures("token_checks")
async def test_a_good_token_is_stored(
    client: Client, service: Service, git_hosts: GitHosts
) -> None:
    answer = await store(client, gitlab={"token": "good", "host": git_hosts.url})
    assert (answer.status, answer.json()) == (200, {"message": "Git providers stored"})
    assert await hosts(client) == {"gitlab": git_hosts.url}
    assert (await seen_in_sandbox(client, service, "gitlab_token")).text == "good"


@pytest.mark.usefixtures("token_checks")
@pytest.mark.parametrize("path", [PROVIDERS, "/api/add-git-providers"])
async def test_a_refused_token_is_not_stored(
    client: Client, git_hosts: GitHosts, path: str
) -> None:
    await store(client, github={"token": "good", "host": git_hosts.url})
    tokens = {
        "github": {"token": "good", "host": git_hosts.url},
        "gitlab": {"token": "bad", "host": git_hosts.url},
    }
    answer = await client.post(path, json={"provider_tokens": tokens})
    words = "Invalid token. Please make sure it is a valid gitlab token."
    assert (answer.status, answer.json()["detail"]) == (401, words)
    assert answer.json()["error"] == words
    assert await hosts(client) == {"github": git_hosts.url}


@pytest.mark.usefixtures("token_checks")
async def test_a_token_whose_host_does_not_answer_is_stored_and_said_to_be_unchecked(
    client: Client, unreachable_url: str
) -> None:
    answer = await store(client, forgejo={"token": "t", "host": unreachable_url})
    assert answer.status == 200
    assert answer.json() == {"message": "Git providers stored", "unchecked": ["forgejo"]}
    assert await hosts(client) == {"forgejo": unreachable_url}


@pytest.mark.usefixtures("token_checks")
async def test_the_whole_set_is_replaced_and_an_empty_token_stays(
    client: Client, service: Service, git_hosts: GitHosts
) -> None:
    await store(
        client,
        github={"token": "good", "host": git_hosts.url},
        gitlab={"token": "good", "host": git_hosts.url},
    )
    await store(client, gitlab={"token": "", "host": git_hosts.url})
    assert await hosts(client) == {"gitlab": git_hosts.url}
    assert (await seen_in_sandbox(client, service, "gitlab_token")).text == "good"


@pytest.mark.usefixtures("token_checks")
async def test_a_stored_token_is_checked_at_its_new_host(
    client: Client, git_hosts: GitHosts, unreachable_url: str
) -> None:
    await store(client, gitlab={"token": "good", "host": unreachable_url})
    assert git_hosts.requests == []
    await store(client, gitlab={"host": git_hosts.url})
    assert git_hosts.requests == ["/api/v4/user"]


async def test_where_checks_are_switched_off_every_token_is_stored(
    client: Client, git_hosts: GitHosts
) -> None:
    answer = await store(client, gitlab={"token": "bad", "host": git_hosts.url})
    assert (answer.status, answer.json()) == (200, {"message": "Git providers stored"})
    assert await hosts(client) == {"gitlab": git_hosts.url}
    assert git_hosts.requests == []


async def test_tool_servers_may_come_with_the_tokens(client: Client) -> None:
    body = {"provider_tokens": {}, "mcp_config": {"sse_servers": [{"url": "http://a"}]}}
    assert (await client.post(PROVIDERS, json=body)).status == 200
    settings = (await client.get("/api/v1/settings")).json()
    assert settings["mcp_config"]["sse_servers"][0]["url"] == "http://a"


async def test_a_refused_tool_server_leaves_the_tokens(client: Client, git_hosts: GitHosts) -> None:
    await store(client, gitlab={"token": "good", "host": git_hosts.url})
    server = {"command": "a", "env": {"K": "**********"}}
    body = {"provider_tokens": {"github": {"token": "t"}}, "mcp_config": {"x": server}}
    assert (await client.post(PROVIDERS, json=body)).status == 422
    assert await hosts(client) == {"gitlab": git_hosts.url}


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"provider_tokens": {"svn": {"token": "t"}}}, ["body", "provider_tokens", "svn"]),
        (
            {"provider_tokens": {"github": {"token": 5}}},
            ["body", "provider_tokens", "github", "token"],
        ),
        (
            {"provider_tokens": {"github": {"token": "t", "host": "a b"}}},
            ["body", "provider_tokens", "github", "host"],
        ),
        ({"provider_tokens": []}, ["body", "provider_tokens"]),
        ({"mcp_config": {"s": {}}}, ["body", "mcp_config", "s"]),
    ],
)
async def test_tokens_that_do_not_fit_are_refused_at_their_place(
    client: Client, body: Any, loc: list[str]
) -> None:
    answer = await client.post(PROVIDERS, json=body)
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, loc)


async def test_all_tokens_are_forgotten(client: Client, git_hosts: GitHosts) -> None:
    await store(client, gitlab={"token": "good", "host": git_hosts.url})
    answer = await client.delete(PROVIDERS)
    assert (answer.status, answer.json()) == (200, {"message": "Unset Git provider tokens"})
    assert await hosts(client) == {}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/search"),
        ("POST", ""),
        ("PUT", "/A"),
        ("DELETE", "/A"),
        ("POST", "/git-providers"),
        ("DELETE", "/git-providers"),
    ],
)
async def test_secrets_need_a_key(service: Service, method: str, path: str) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.request(method, SECRETS + path)).status == 401
