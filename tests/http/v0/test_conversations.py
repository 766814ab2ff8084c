"""Conversations of the older generation, through the socket."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent
from tests.service import Client, Service

PATH = "/api/conversations"
UNKNOWN_ID = "0" * 32
KEY_MESSAGE = "Error authenticating with the LLM provider. Please check your API key"


async def start(client: Client, **fields: Any) -> str:
    answer = await client.post(PATH, json=fields)
    assert answer.status == 200, answer.text
    return str(answer.json()["conversation_id"])


async def info(client: Client, name: str) -> Any:
    answer = await client.get(f"{PATH}/{name}")
    assert answer.status == 200, answer.text
    return answer.json()


async def wait_for(client: Client, name: str, status: str) -> dict[str, Any]:
    async with asyncio.timeout(client.patience):
        while True:
            found: dict[str, Any] = await info(client, name)
            if found["status"] == status:
                return found
            await asyncio.sleep(0.03)


async def wait_until(is_so: Callable[[], bool], time_limit: float) -> None:
    async with asyncio.timeout(time_limit):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.03)


async def test_starting_answers_at_once(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    answer = await client.post(PATH, json={})
    body = answer.json()
    assert answer.status == 200
    assert len(body.pop("conversation_id")) == 32
    assert body == {"status": "ok", "message": None, "conversation_status": "STARTING"}


async def test_a_conversation_has_every_field_of_the_contract(client: Client) -> None:
    name = await start(client, initial_user_msg="please work")
    found = await wait_for(client, name, "RUNNING")
    assert found["url"] == f"/api/conversations/{name}"
    assert (await client.get(found["url"])).json()["conversation_id"] == name
    assert found["created_at"].endswith("Z")
    assert found["last_updated_at"].endswith("Z")
    for member in ("url", "created_at", "last_updated_at", "title"):
        del found[member]
    assert found == {
        "conversation_id": name,
        "status": "RUNNING",
        "runtime_status": "STATUS$READY",
        "selected_repository": None,
        "selected_branch": None,
        "git_provider": None,
        "trigger": "gui",
        "num_connections": 0,
        "pr_number": [],
        "conversation_version": "V0",
        "session_api_key": None,
        "sub_conversation_ids": [],
    }


async def test_the_url_has_the_path_below_which_the_server_is(
    service: Service, client: Client
) -> None:
    name = await start(client)
    server = msgspec.structs.replace(service.config.server, public_url="https://a.example/agents")
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    found = await wait_for(client, name, "RUNNING")
    assert found["url"] == f"/agents{PATH}/{name}"
    assert (await client.get(found["url"])).json()["conversation_id"] == name


async def test_a_conversation_of_the_newer_generation_is_served_by_its_agent_server(
    client: Client, service: Service
) -> None:
    name = await client.start_conversation(None)
    for _ in range(2):
        found = await info(client, name)
        assert found["conversation_version"] == "V1"
        assert found["url"].startswith("http://")
        assert found["url"].endswith(f"/api/conversations/{name}")
        assert found["session_api_key"]
        await service.restart()


async def test_a_conversation_shows_while_it_starts(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    found = await info(client, name)
    assert found["status"] == "STARTING"
    assert found["title"] == f"Conversation {name[:5]}"
    assert (found["runtime_status"], found["url"], found["session_api_key"]) == (None, None, None)


async def test_a_start_that_failed_shows_as_an_error(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    await wait_until(lambda: bool(fake_world.sandboxes), client.patience)
    fake_world.end(next(iter(fake_world.sandboxes)))
    assert (await wait_for(client, name, "ERROR"))["runtime_status"] is None


async def test_what_the_user_says_reaches_the_agent(client: Client, fake_agent: FakeAgent) -> None:
    image = "data:image/png;base64,iVBORw0KGgo="
    name = await start(
        client,
        initial_user_msg="look at this",
        image_urls=[image],
        conversation_instructions="be brief",
    )
    await wait_for(client, name, "RUNNING")
    conversation = fake_agent.find_conversation(name)
    assert conversation is not None
    content = conversation.body["initial_message"]["content"]
    assert [item["type"] for item in content] == ["text", "image"]
    assert content[0]["text"] == "look at this"
    assert content[1]["image_urls"] == [image]
    suffix = conversation.body["agent"]["agent_context"]["system_message_suffix"]
    assert "be brief" in suffix


async def test_tool_servers_of_the_request_replace_those_of_the_settings(
    client: Client, fake_agent: FakeAgent
) -> None:
    await client.save_settings(mcp_config={"sse_servers": ["http://settings.example/sse"]})
    name = await start(client, mcp_config={"sse_servers": ["http://request.example/sse"]})
    await wait_for(client, name, "RUNNING")
    conversation = fake_agent.find_conversation(name)
    assert conversation is not None
    servers = conversation.body["agent"]["mcp_config"]
    assert "http://request.example/sse" in str(servers)
    assert "http://settings.example/sse" not in str(servers)


async def test_a_suggested_task_becomes_the_first_message(
    client: Client, fake_agent: FakeAgent
) -> None:
    task = {
        "git_provider": "github",
        "task_type": "OPEN_ISSUE",
        "repo": "a/b",
        "issue_number": 7,
        "title": "It breaks",
    }
    name = await start(client, suggested_task=task, initial_user_msg="gives way")
    found = await wait_for(client, name, "RUNNING")
    conversation = fake_agent.find_conversation(name)
    assert conversation is not None
    text = conversation.body["initial_message"]["content"][0]["text"]
    assert "It breaks" in text
    assert "gives way" not in text
    assert found["trigger"] == "suggested_task"


async def test_a_task_without_a_prompt_is_refused(client: Client) -> None:
    task = {
        "git_provider": "github",
        "task_type": "CREATE_MICROAGENT",
        "repo": "a/b",
        "issue_number": 1,
        "title": "t",
    }
    assert (await client.post(PATH, json={"suggested_task": task})).status == 400


async def test_the_source_of_a_conversation_is_shown(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    skill = {"repo": "c/d", "git_provider": "gitlab", "title": "t"}
    found = await info(client, await start(client, create_microagent=skill, selected_branch="dev"))
    assert (found["selected_repository"], found["git_provider"]) == ("c/d", "gitlab")
    assert (found["selected_branch"], found["trigger"]) == ("dev", "microagent_management")


async def test_without_settings_nothing_is_started(service: Service) -> None:
    newcomer = await service.make_client()
    answer = await newcomer.post(PATH, json={"initial_user_msg": "hi"})
    body = answer.json()
    assert answer.status == 400
    assert body.pop("request_id")
    assert body == {
        "detail": "Settings not found",
        "code": "bad_request",
        "status": "error",
        "message": "Settings not found",
        "msg_id": "CONFIGURATION$SETTINGS_NOT_FOUND",
    }


async def test_without_a_model_key_nothing_is_started(service: Service) -> None:
    newcomer = await service.make_client()
    await newcomer.post("/api/settings", json={"llm_model": "openai/m"})
    body = (await newcomer.post(PATH, json={})).json()
    assert (body["msg_id"], body["message"]) == ("STATUS$ERROR_LLM_AUTHENTICATION", KEY_MESSAGE)


@pytest.mark.parametrize(
    "settings",
    [{"llm_model": "bedrock/m"}, {"llm_model": "openai/m", "llm_base_url": "http://127.0.0.1:1"}],
)
async def test_a_model_that_needs_no_key_is_started_without(
    service: Service, settings: dict[str, str]
) -> None:
    newcomer = await service.make_client()
    await newcomer.post("/api/settings", json=settings)
    assert (await newcomer.post(PATH, json={})).status == 200


@pytest.mark.parametrize(
    ("body", "loc", "kind"),
    [
        ({"bogus": 1}, ["body", "bogus"], "extra_forbidden"),
        ({"git_provider": "svn"}, ["body", "git_provider"], "enum"),
        ({"conversation_id": "../bad"}, ["body", "conversation_id"], None),
        ({"selected_branch": "-x"}, ["body", "selected_branch"], None),
        ({"repository": "a"}, ["body", "repository"], None),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_before_the_settings_are_asked_for(
    service: Service, body: dict[str, Any], loc: list[str], kind: str | None
) -> None:
    newcomer = await service.make_client()
    answer = await newcomer.post(PATH, json=body)
    assert answer.status == 422, answer.text
    [problem] = answer.json()["detail"]
    assert problem["loc"] == loc
    assert kind is None or problem["type"] == kind


async def test_no_body_is_refused(client: Client) -> None:
    answer = await client.post(PATH)
    assert answer.status == 422
    assert answer.json()["detail"][0]["type"] == "missing"


@pytest.mark.parametrize("text", ["{broken", "[]", '{"trajectory": [{"action": "message"}]}'])
async def test_what_is_no_recording_is_refused(client: Client, text: str) -> None:
    answer = await client.post(PATH, json={"replay_json": text})
    body = answer.json()
    assert (answer.status, body["status"]) == (400, "error")
    assert body["message"] == body["detail"]
    assert (await client.get(PATH)).json()["results"] == []


async def test_a_client_may_choose_the_id(client: Client) -> None:
    chosen = "6f1c9b0e-6f0e-4b52-9c56-6a8a0b0f3a11"
    assert await start(client, conversation_id=chosen) == chosen.replace("-", "")
    await wait_for(client, chosen, "RUNNING")
    assert await client.conversation(chosen)


async def test_a_name_of_the_clients_own_works_wherever_an_id_does(client: Client) -> None:
    assert await start(client, conversation_id="my-conv_1") == "my-conv_1"
    found = await wait_for(client, "my-conv_1", "RUNNING")
    assert found["conversation_id"] == "my-conv_1"
    assert (await client.get(f"{PATH}/my-conv_1/events")).status == 200
    assert (await client.patch(f"{PATH}/my-conv_1", json={"title": "T"})).json() is True
    assert (await client.delete(f"{PATH}/my-conv_1")).json() is True


@pytest.mark.parametrize("chosen", ["my-conv_1", "6f1c9b0e6f0e4b529c566a8a0b0f3a11"])
async def test_a_known_id_gives_the_conversation_as_it_is(
    client: Client, fake_agent: FakeAgent, chosen: str
) -> None:
    first = {"conversation_id": chosen, "initial_user_msg": "hello"}
    await start(client, **first)
    await wait_for(client, chosen, "RUNNING")
    known = {"status": "ok", "conversation_id": chosen, "conversation_status": "RUNNING"}
    for body in (first, {"conversation_id": chosen}):
        answer = await client.post(PATH, json=body)
        assert answer.json() == {**known, "message": None}
    answer = await client.post(PATH, json={**first, "initial_user_msg": "not sent"})
    assert answer.json() == {
        **known,
        "message": "The conversation exists, and the message was not taken."
        f" Send it with POST /api/conversations/{chosen}/message",
    }
    assert len((await client.get(PATH)).json()["results"]) == 1
    [sandbox] = fake_agent.sandboxes.values()
    assert "not sent" not in str(sandbox.bodies)


async def test_an_empty_message_is_refused_unless_something_else_says_what_for(
    client: Client,
) -> None:
    for text in ("", " \n"):
        answer = await client.post(PATH, json={"initial_user_msg": text, "repository": "a/b"})
        assert answer.status == 422, answer.text
        [problem] = answer.json()["detail"]
        assert problem["loc"] == ["body", "initial_user_msg"]
    assert (await client.get(PATH)).json()["results"] == []
    await start(client, initial_user_msg="", image_urls=["data:image/png;base64,AA=="])
    await start(client, initial_user_msg="", create_microagent={"repo": "a/b"})
    await start(client, initial_user_msg=None)


async def test_starts_of_one_name_at_once_make_one_conversation(client: Client) -> None:
    posts = [client.post(PATH, json={"conversation_id": "same"}) for _ in range(5)]
    answers = await asyncio.gather(*posts)
    assert {answer.status for answer in answers} <= {200, 409}
    assert 200 in {answer.status for answer in answers}
    assert len((await client.get(PATH)).json()["results"]) == 1


async def test_another_users_name_is_free(service: Service, client: Client) -> None:
    other = await service.make_client("other", Role.MEMBER)
    await other.save_settings()
    await start(client, conversation_id="same")
    await start(other, conversation_id="same")
    assert len((await other.get(PATH)).json()["results"]) == 1


async def test_another_users_conversation_does_not_exist(service: Service, client: Client) -> None:
    name = await start(client)
    other = await service.make_client("other", Role.MEMBER)
    await other.save_settings()
    assert await info(other, name) is None
    assert (await other.get(f"{PATH}/{name}/events")).status == 404
    assert (await other.patch(f"{PATH}/{name}", json={"title": "x"})).status == 404
    assert (await other.delete(f"{PATH}/{name}")).json() is False
    assert (await other.post(PATH, json={"conversation_id": name})).status == 409
    assert await info(client, name)


async def test_conversations_are_listed_newest_first_in_pages(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    names = [await start(client) for _ in range(5)]
    found: list[str] = []
    page_id: str | None = ""
    while page_id is not None:
        query = f"?limit=2&page_id={page_id}" if page_id else "?limit=2"
        page = (await client.get(PATH + query)).json()
        assert set(page) == {"results", "next_page_id"}
        found += [item["conversation_id"] for item in page["results"]]
        page_id = page["next_page_id"]
    assert found == names[::-1]


async def test_filters_apply_before_the_page_is_cut(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    wanted = [await start(client, repository="a/b") for _ in range(2)]
    for _ in range(3):
        await start(client)
    page = (await client.get(f"{PATH}?limit=2&selected_repository=a/b")).json()
    assert [item["conversation_id"] for item in page["results"]] == wanted[::-1]
    assert page["next_page_id"] is None
    triggered = (await client.get(f"{PATH}?conversation_trigger=suggested_task")).json()
    assert triggered == {"results": [], "next_page_id": None}


async def test_a_conversation_of_the_newer_generation_is_in_the_list(client: Client) -> None:
    name = await client.start_conversation()
    [found] = (await client.get(PATH)).json()["results"]
    assert found["conversation_id"] == name


async def test_a_conversation_of_the_older_generation_is_seen_in_the_newer(
    client: Client,
) -> None:
    name = await start(client, initial_user_msg="please work")
    await wait_for(client, name, "RUNNING")
    found = await client.wait_for_execution(name, "finished")
    assert (found["id"], found["trigger"]) == (name, "gui")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=abc", 422),
        ("limit=0", 422),
        ("limit=-1", 422),
        ("limit=99999999999999999999", 422),
        ("limit=1000", 200),
        ("page_id=zzz", 422),
        ("conversation_trigger=nobody", 422),
        ("include_sub_conversations=perhaps", 422),
        ("include_sub_conversations=true", 200),
    ],
)
async def test_a_query_that_does_not_fit_is_refused(
    client: Client, query: str, status: int
) -> None:
    assert (await client.get(f"{PATH}?{query}")).status == status


async def test_an_unknown_conversation_is_null(client: Client) -> None:
    assert await info(client, UNKNOWN_ID) is None
    assert await info(client, "nope") is None


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("a" * 101, "Conversation ID is too long"),
        ("%00", "Conversation ID has characters that are not allowed"),
        ("a..b", "Conversation ID has characters that are not allowed"),
        ("a%2Fb", "Conversation ID has characters that are not allowed"),
        ("a%5Cb", "Conversation ID has characters that are not allowed"),
    ],
)
async def test_a_name_that_no_conversation_can_have_is_refused(
    client: Client, name: str, detail: str
) -> None:
    for method in ("GET", "DELETE"):
        answer = await client.request(method, f"{PATH}/{name}")
        assert (answer.status, answer.json()["detail"]) == (400, detail)


async def test_a_title_is_changed(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    assert (await client.patch(f"{PATH}/{name}", json={"title": "New title"})).json() is True
    assert (await info(client, name))["title"] == "New title"


@pytest.mark.parametrize(
    "body", [{}, {"title": ""}, {"title": "x" * 201}, {"title": "x", "other": 1}, {"title": None}]
)
async def test_a_title_that_does_not_fit_is_refused(client: Client, body: dict[str, Any]) -> None:
    assert (await client.patch(f"{PATH}/{UNKNOWN_ID}", json=body)).status == 422


async def test_an_unknown_conversation_gets_no_title(client: Client) -> None:
    answer = await client.patch(f"{PATH}/nope", json={"title": "x"})
    body = answer.json()
    assert answer.status == 404
    assert (body["status"], body["msg_id"]) == ("error", "CONVERSATION$NOT_FOUND")


async def test_a_conversation_is_deleted_once(client: Client, fake_world: FakeWorld) -> None:
    name = await start(client)
    await wait_for(client, name, "RUNNING")
    assert (await client.delete(f"{PATH}/{name}")).json() is True
    assert (await client.delete(f"{PATH}/{name}")).json() is False
    assert await info(client, name) is None
    await wait_until(lambda: not fake_world.sandboxes, client.patience)


async def test_an_unknown_conversation_is_not_deleted(client: Client) -> None:
    answer = await client.delete(f"{PATH}/{UNKNOWN_ID}")
    assert (answer.status, answer.json()) == (200, False)


async def test_a_paused_sandbox_shows_as_stopped(client: Client) -> None:
    name = await start(client, conversation_id="kept")
    assert (await wait_for(client, name, "RUNNING"))["url"] == f"{PATH}/kept"
    [sandbox] = (await client.get("/api/v1/sandboxes/search")).json()["items"]
    sandbox_id = sandbox["id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    found = await wait_for(client, name, "STOPPED")
    assert (found["url"], found["session_api_key"], found["runtime_status"]) == (None, None, None)
    known = await client.post(PATH, json={"conversation_id": "kept"})
    assert known.json()["conversation_status"] == "STOPPED"
