"""Sandboxes and sandbox specs of version 1, and the secrets a sandbox may ask for."""

import asyncio

import msgspec

from agentsvc.accounts.keys import Role
from agentsvc.config.sandboxes import SpecConfig
from agentsvc.testing.backend import FakeWorld
from tests.service import Client, Service

PATH = "/api/v1/sandboxes"
SPECS = "/api/v1/sandbox-specs"


async def _start(client: Client) -> str:
    answer = await client.post(PATH)
    assert answer.status == 200, answer.text
    sandbox_id = str(answer.json()["id"])
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


async def _calling(client: Client, service: Service) -> tuple[str, Client]:
    """Return a running sandbox and a client with its key."""
    sandbox_id = await _start(client)
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    return sandbox_id, service.client_with(sandbox["session_api_key"])


async def test_a_new_sandbox_is_starting_and_shows_no_urls(client: Client) -> None:
    sandbox = (await client.post(PATH)).json()
    assert sandbox["status"] == "STARTING"
    assert sandbox["exposed_urls"] is None
    assert sandbox["sandbox_spec_id"] == "fake"
    assert sandbox["created_by_user_id"] is None
    assert sandbox["created_at"].endswith("Z")


async def test_a_running_sandbox_shows_where_its_agent_is(client: Client) -> None:
    sandbox = await client.sandbox(await _start(client))
    assert sandbox is not None
    [url] = sandbox["exposed_urls"]
    assert url["name"] == "AGENT_SERVER"
    assert url["url"] == client.base_url
    assert sandbox["session_api_key"]


async def test_the_spec_is_named_by_query_or_body_and_an_unknown_one_is_refused(
    client: Client,
) -> None:
    assert (await client.post(f"{PATH}?sandbox_spec_id=fake")).status == 200
    assert (await client.post(PATH, json={"sandbox_spec_id": "fake"})).status == 200
    assert (await client.post(PATH, json=None)).status == 200
    assert (await client.post(f"{PATH}?sandbox_spec_id=nothing")).status == 404
    assert (await client.post(PATH, json={"sandbox_spec_id": "nothing"})).status == 404
    assert (await client.post(PATH, json={"sandbox_spec_id": 1})).status == 422


async def test_sandboxes_are_listed_newest_first_and_paged(client: Client) -> None:
    ids = [(await client.post(PATH)).json()["id"] for _ in range(3)]
    first = (await client.get(f"{PATH}/search?limit=2")).json()
    assert [item["id"] for item in first["items"]] == [ids[2], ids[1]]
    rest = (await client.get(f"{PATH}/search?limit=2&page_id={first['next_page_id']}")).json()
    assert ([item["id"] for item in rest["items"]], rest["next_page_id"]) == ([ids[0]], None)


async def test_sandboxes_are_got_in_the_order_of_their_ids(client: Client) -> None:
    one, two = await _start(client), await _start(client)
    found = (await client.get(f"{PATH}?id={two}&id=nothing&id={one}")).json()
    assert [item and item["id"] for item in found] == [two, None, one]


async def test_one_sandbox_is_got_by_its_path_and_another_users_is_not_found(
    client: Client, service: Service
) -> None:
    sandbox_id = await _start(client)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    answer = await client.get(f"{PATH}/{sandbox_id}")
    assert (answer.status, answer.json()) == (200, await client.sandbox(sandbox_id))
    head = await client.request("HEAD", f"{PATH}/{sandbox_id}")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == answer.headers["Content-Length"]
    other = await service.make_client("eve", Role.MEMBER)
    assert (await other.get(f"{PATH}/{sandbox_id}")).status == 404
    assert (await client.get(f"{PATH}/nothing")).status == 404
    assert (await service.client_with(None).request("HEAD", PATH)).status == 401


async def test_a_batch_of_sandboxes_needs_one_to_a_hundred_ids(client: Client) -> None:
    assert (await client.get(PATH)).status == 422
    query = "&".join("id=x" for _ in range(101))
    assert (await client.get(f"{PATH}?{query}")).status == 400


async def test_pause_and_resume_may_be_repeated(client: Client) -> None:
    sandbox_id = await _start(client)
    for action, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        for _ in range(2):
            answer = await client.post(f"{PATH}/{sandbox_id}/{action}")
            assert (answer.status, answer.json()) == (200, {"success": True})
        await client.wait_for_sandbox(sandbox_id, status)


async def test_a_paused_sandbox_shows_no_urls(client: Client) -> None:
    sandbox_id = await _start(client)
    await client.post(f"{PATH}/{sandbox_id}/pause")
    assert (await client.wait_for_sandbox(sandbox_id, "PAUSED"))["exposed_urls"] is None


async def test_an_unknown_sandbox_is_not_found(client: Client) -> None:
    for answer in (
        await client.post(f"{PATH}/nothing/pause"),
        await client.post(f"{PATH}/nothing/resume"),
        await client.delete(f"{PATH}/nothing"),
    ):
        assert (answer.status, answer.json()["detail"]) == (404, "Not Found")


async def test_a_deleted_sandbox_is_gone(client: Client, fake_world: FakeWorld) -> None:
    sandbox_id = await _start(client)
    answer = await client.delete(f"{PATH}/{sandbox_id}")
    assert (answer.status, answer.json()) == (200, {"success": True})
    assert await client.sandbox(sandbox_id) is None
    assert fake_world.sandboxes == {}
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 404


async def test_the_query_says_which_sandbox_to_delete_if_it_names_one(client: Client) -> None:
    one, two = await _start(client), await _start(client)
    assert (await client.delete(f"{PATH}/{one}?sandbox_id={two}")).status == 200
    assert await client.sandbox(two) is None
    assert await client.sandbox(one) is not None


async def test_a_sandbox_that_failed_says_why(client: Client, fake_world: FakeWorld) -> None:
    sandbox_id = await _start(client)
    fake_world.end(sandbox_id, exit_code=3, reason="it ran out of memory")
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert "it ran out of memory" in sandbox["status_detail"]
    assert (sandbox["exposed_urls"], sandbox["session_api_key"]) == (None, None)


async def test_a_sandbox_that_vanished_is_missing(client: Client, fake_world: FakeWorld) -> None:
    sandbox_id = await _start(client)
    fake_world.vanish(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "MISSING")


async def test_another_users_sandbox_does_not_exist(client: Client, service: Service) -> None:
    sandbox_id = await _start(client)
    other = await service.make_client("somebody else", Role.MEMBER)
    assert (await other.get(f"{PATH}?id={sandbox_id}")).json() == [None]
    assert (await other.get(f"{PATH}/search")).json()["items"] == []
    assert (await other.post(f"{PATH}/{sandbox_id}/pause")).status == 404
    assert (await other.post(f"{PATH}/{sandbox_id}/resume")).status == 404
    assert (await other.delete(f"{PATH}/{sandbox_id}")).status == 404


async def test_the_specs_are_listed_and_got_by_id(client: Client) -> None:
    page = (await client.get(f"{SPECS}/search")).json()
    [spec] = page["items"]
    assert spec["id"] == "fake"
    assert spec["command"] == ["agent"]
    assert spec["working_dir"]
    assert (spec["initial_env"], page["next_page_id"]) == ({}, None)
    assert (await client.get(f"{SPECS}?id=nothing&id=fake")).json() == [None, spec]
    assert (await client.get(SPECS)).status == 422


async def test_specs_are_paged_in_their_order(client: Client, service: Service) -> None:
    specs = {name: SpecConfig(id=name, backend="fake") for name in ("c", "a", "b")}
    service.config = msgspec.structs.replace(service.config, specs=specs)
    await service.restart()
    whole = [spec["id"] for spec in (await client.get(f"{SPECS}/search")).json()["items"]]
    first = (await client.get(f"{SPECS}/search?limit=2")).json()
    rest = (await client.get(f"{SPECS}/search?page_id={first['next_page_id']}")).json()
    assert [spec["id"] for spec in (*first["items"], *rest["items"])] == whole
    assert (len(first["items"]), whole[:3]) == (2, ["c", "a", "b"])
    assert rest["next_page_id"] is None
    assert (await client.get(f"{SPECS}/search?page_id=gone")).status == 422


async def test_a_sandbox_asks_for_secrets_with_its_own_key(
    client: Client, service: Service
) -> None:
    store = {
        "custom_secrets": {"TOKEN": {"secret": "custom-value", "description": "a token"}},
        "provider_tokens": {"github": {"token": "provider-value"}},
    }
    await client.save_settings(secrets_store=store)
    sandbox_id, sandbox = await _calling(client, service)
    path = f"{PATH}/{sandbox_id}/settings/secrets"
    names = (await sandbox.get(path)).json()["secrets"]
    assert {"name": "TOKEN", "description": "a token"} in names
    assert "github_token" in [secret["name"] for secret in names]
    answer = await sandbox.get(f"{path}/TOKEN")
    assert (answer.text, answer.status) == ("custom-value", 200)
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert (await sandbox.get(f"{path}/github_token")).text == "provider-value"
    answer = await sandbox.get(f"{path}/NOTHING")
    assert (answer.status, answer.json()["detail"]) == (404, "Secret not found")


async def test_another_sandboxs_secrets_are_refused(client: Client, service: Service) -> None:
    _, sandbox = await _calling(client, service)
    other_id = await _start(client)
    answer = await sandbox.get(f"{PATH}/{other_id}/settings/secrets")
    assert (answer.status, answer.json()["detail"]) == (
        403,
        "Session API key does not match sandbox",
    )


async def test_secrets_are_refused_to_a_users_key_and_to_a_paused_sandbox(
    client: Client, service: Service
) -> None:
    sandbox_id, sandbox = await _calling(client, service)
    path = f"{PATH}/{sandbox_id}/settings/secrets"
    for caller in (client, service.client_with(None), service.client_with("wrong")):
        answer = await caller.get(path)
        assert (answer.status, answer.json()["detail"]) == (401, "Invalid session API key")
    await client.post(f"{PATH}/{sandbox_id}/pause")
    assert (await sandbox.get(path)).status == 401


async def test_a_sandboxs_key_opens_nothing_of_its_user(client: Client, service: Service) -> None:
    _, sandbox = await _calling(client, service)
    assert (await sandbox.get(f"{PATH}/search")).status == 401
    # Of the older generation's paths it opens those that its own agent server has.
    assert (await sandbox.get("/api/settings")).text == "404: Not Found"


async def test_many_sandboxes_start_and_end_at_once(client: Client, fake_world: FakeWorld) -> None:
    ids = await asyncio.gather(*(_start(client) for _ in range(5)))
    answers = await asyncio.gather(*(client.delete(f"{PATH}/{one}") for one in ids))
    assert [answer.status for answer in answers] == [200] * 5
    assert fake_world.sandboxes == {}
