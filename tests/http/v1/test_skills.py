"""What a user brings into conversations, through the socket: skills, and another model."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from tests.fake_agent import FakeAgent
from tests.fake_sandbox import FakeSandbox
from tests.service import Answer, Client, Service

SEARCH = "/api/v1/skills/search"
PROFILES = "/api/v1/settings/profiles"
SKILL = {
    "name": "deploy",
    "type": "knowledge",
    "content": "How to deploy",
    "triggers": ["ship it"],
    "source": "/home/agent/.openhands/skills/deploy.md",
}


def newest(fake_agent: FakeAgent) -> FakeSandbox:
    return list(fake_agent.sandboxes.values())[-1]


# Skills


async def test_without_a_running_sandbox_there_are_no_skills_to_be_seen(client: Client) -> None:
    answer = await client.get(SEARCH)
    assert (answer.status, answer.json()) == (200, {"items": [], "next_page_id": None})


async def test_skills_are_those_a_running_sandbox_sees(
    client: Client, fake_agent: FakeAgent
) -> None:
    await client.start_conversation(None)
    sandbox = newest(fake_agent)
    sandbox.skills = [SKILL, {"name": "a", "type": "repo", "content": "", "triggers": []}]
    assert (await client.get(SEARCH)).json()["items"] == [
        {"name": "a", "type": "repo", "source": "", "triggers": None},
        {
            "name": "deploy",
            "type": "knowledge",
            "source": "/home/agent/.openhands/skills/deploy.md",
            "triggers": ["ship it"],
        },
    ]
    [order] = [body for path, body in sandbox.bodies[-1:] if path == "/api/skills"]
    assert (order["load_project"], order["load_public"], order["load_user"]) == (False, False, True)


async def test_skills_come_in_pages(client: Client, fake_agent: FakeAgent) -> None:
    await client.start_conversation(None)
    newest(fake_agent).skills = [{**SKILL, "name": name} for name in ("c", "a", "b")]
    first = (await client.get(f"{SEARCH}?limit=2")).json()
    assert [item["name"] for item in first["items"]] == ["a", "b"]
    second = (await client.get(f"{SEARCH}?limit=2&page_id={first['next_page_id']}")).json()
    assert [item["name"] for item in second["items"]] == ["c"]
    assert second["next_page_id"] is None


async def test_skills_of_others_are_not_seen(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    await client.start_conversation(None)
    newest(fake_agent).skills = [SKILL]
    other = await service.make_client("bob", Role.MEMBER)
    assert (await other.get(SEARCH)).json()["items"] == []


@pytest.mark.parametrize("skills", [[{"name": 5}], [{}]])
async def test_skills_of_another_form_are_a_bad_gateway(
    client: Client, fake_agent: FakeAgent, skills: list[dict[str, Any]]
) -> None:
    await client.start_conversation(None)
    newest(fake_agent).skills = skills
    answer = await client.get(SEARCH)
    assert (answer.status, answer.json()["code"]) == (502, "agent_refused")


async def test_skills_need_a_key(service: Service) -> None:
    nobody = await service.make_client(None)
    assert (await nobody.get(SEARCH)).status == 401


# Another model


async def switch(client: Client, conversation_id: str, name: str = "x") -> Answer:
    path = f"/api/v1/app-conversations/{conversation_id}/switch_profile"
    return await client.post(path, json={"profile_name": name})


async def save(client: Client, **llm: Any) -> None:
    answer = await client.post(f"{PROFILES}/x", json={"llm": llm})
    assert answer.status == 201, answer.text


def sent(fake_agent: FakeAgent) -> list[dict[str, Any]]:
    """Return the models the agent server was told to switch to."""
    return [body["llm"] for path, body in newest(fake_agent).bodies if path.endswith("/switch_llm")]


async def test_a_conversation_goes_on_with_a_saved_model(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(client, model="openai/x", api_key="key-x", temperature=0.5)
    conversation_id = await client.start_conversation(None)
    answer = await switch(client, conversation_id)
    assert (answer.status, answer.json()) == (200, {"success": True})
    [llm] = sent(fake_agent)
    assert (llm["model"], llm["api_key"], llm["temperature"]) == ("openai/x", "key-x", 0.5)
    assert llm["stream"] is True
    kind, name, digest = llm["usage_id"].split(":")
    assert (kind, name, len(digest)) == ("profile", "x", 8)


async def test_a_changed_profile_is_another_model_to_the_agent(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation(None)
    for key in ("key-1", "key-2", "key-2"):
        await save(client, model="openai/x", api_key=key)
        await switch(client, conversation_id)
    ids = [llm["usage_id"] for llm in sent(fake_agent)]
    assert ids[0] != ids[1] == ids[2]


async def test_a_profile_without_a_key_uses_that_of_the_settings(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(client, model="openai/x")
    await switch(client, await client.start_conversation(None))
    assert sent(fake_agent)[0]["api_key"] == "model-key-1"


async def test_the_settings_stay_as_they_are(client: Client) -> None:
    await save(client, model="openai/x")
    await switch(client, await client.start_conversation(None))
    assert (await client.get("/api/v1/settings")).json()["llm_model"] == "openai/scripted"


async def test_a_profile_that_is_not_there_is_not_found(client: Client) -> None:
    answer = await switch(client, await client.start_conversation(None), "absent")
    assert (answer.status, answer.json()["detail"]) == (404, "Profile 'absent' not found")


async def test_a_conversation_that_is_not_there_is_not_found(client: Client) -> None:
    await save(client, model="openai/x")
    answer = await switch(client, "0" * 32)
    assert answer.status == 404
    assert "Conversation" in answer.json()["detail"]


async def test_without_settings_there_is_no_profile(service: Service) -> None:
    newcomer = await service.make_client("newcomer", Role.MEMBER)
    answer = await switch(newcomer, "0" * 32)
    assert (answer.status, answer.json()["detail"]) == (404, "Settings not found")


async def test_a_paused_conversation_keeps_its_model(client: Client, fake_agent: FakeAgent) -> None:
    await save(client, model="openai/x")
    conversation_id = await client.start_conversation(None)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    answer = await switch(client, conversation_id)
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert sent(fake_agent) == []


async def test_an_agent_that_refuses_is_a_bad_gateway_that_tells_no_secret(
    client: Client, fake_agent: FakeAgent
) -> None:
    await save(client, model="openai/x", api_key="key-x", extra_headers={"X-A": "header-x"})
    conversation_id = await client.start_conversation(None)
    newest(fake_agent).fail_next(422, "/switch_llm")
    answer = await switch(client, conversation_id)
    assert (answer.status, answer.json()["code"]) == (502, "agent_refused")
    assert "key-x" not in answer.text


@pytest.mark.parametrize("body", [{}, {"profile_name": ""}, {"profile_name": 5}])
async def test_a_body_that_does_not_fit_is_refused(client: Client, body: dict[str, Any]) -> None:
    path = f"/api/v1/app-conversations/{'0' * 32}/switch_profile"
    answer = await client.post(path, json=body)
    assert (answer.status, answer.json()["detail"][0]["loc"]) == (422, ["body", "profile_name"])
