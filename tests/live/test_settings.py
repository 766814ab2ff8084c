"""Settings, saved models and skills of V1 on the real agent server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.live.client import LiveClient
from tests.live.events import outputs
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

SETTINGS = "/api/v1/settings"


@pytest_asyncio.fixture(loop_scope="session")
async def tuned(client: LiveClient) -> AsyncIterator[LiveClient]:
    """Return a client whose tuning and saved models are taken back in the end."""
    yield client
    await save(client, llm=None, condenser=None, verification=None, agent_context=None)
    await client.post(SETTINGS, json={"title_llm_profile": None})
    for name in ("second", "titles"):
        await client.delete(f"{SETTINGS}/profiles/{name}")


async def save(client: LiveClient, **diff: Any) -> None:
    answer = await client.post(SETTINGS, json={"agent_settings_diff": diff})
    assert answer.status == 200, answer.text


async def test_what_is_tuned_reaches_the_model(tuned: LiveClient, sandbox_id: str) -> None:
    await save(
        tuned,
        llm={
            "reasoning_effort": "low",
            "max_output_tokens": 4096,
            "litellm_extra_body": {"team": "a"},
        },
        condenser={"keep_first": 3, "max_tokens": 50_000},
        agent_context={"system_message_suffix": "Speak like Ada Lovelace."},
    )
    conversation_id = await tuned.start_conversation(run("echo tuned"), sandbox_id=sandbox_id)
    await tuned.wait_for_execution(conversation_id, "finished")
    [request, *_] = tuned.asked("echo tuned")
    assert request["reasoning_effort"] == "low"
    assert request["team"] == "a"
    assert request["max_completion_tokens"] == 4096
    assert "Speak like Ada Lovelace." in str(request["messages"][0])


async def test_a_running_conversation_goes_on_with_a_saved_model(
    tuned: LiveClient, sandbox_id: str
) -> None:
    settings = (await tuned.get(SETTINGS)).json()
    llm = {**settings["agent_settings"]["llm"], "model": "openai/second"}
    saved = await tuned.post(f"{SETTINGS}/profiles/second", json={"llm": llm})
    assert saved.status == 201, saved.text
    conversation_id = await tuned.start_conversation(run("echo by-first"), sandbox_id=sandbox_id)
    await tuned.wait_for_execution(conversation_id, "finished")

    path = f"/api/v1/app-conversations/{conversation_id}"
    switched = await tuned.post(f"{path}/switch_profile", json={"profile_name": "second"})
    assert switched.status == 200, switched.text
    await tuned.send(conversation_id, run("echo by-second"))
    await tuned.until(conversation_id, lambda events: outputs(events) == ["by-first", "by-second"])
    assert {one["model"] for one in tuned.asked("echo by-second")} == {"second"}


async def test_a_title_is_made_with_the_saved_model_that_is_named(
    tuned: LiveClient, sandbox_id: str
) -> None:
    settings = (await tuned.get(SETTINGS)).json()
    llm = {**settings["agent_settings"]["llm"], "model": "openai/titles"}
    saved = await tuned.post(f"{SETTINGS}/profiles/titles", json={"llm": llm})
    assert saved.status == 201, saved.text
    await tuned.post(SETTINGS, json={"title_llm_profile": "titles"})
    conversation_id = await tuned.start_conversation(run("echo titled"), sandbox_id=sandbox_id)
    await tuned.post(SETTINGS, json={"title_llm_profile": None})
    await tuned.wait_for_execution(conversation_id, "finished")
    await tuned.wait_for_conversation(
        conversation_id, lambda seen: not seen["title"].startswith("Conversation ")
    )
    asked = [one for one in tuned.model.requests if "echo titled" in str(one)]
    assert {one["model"] for one in asked if not one.get("tools")} == {"titles"}


async def test_skills_of_a_running_sandbox_are_listed(
    own: Installation,
) -> None:
    client = own.client()
    sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    skills = own.sandbox_dir(sandbox_id) / "home" / ".openhands" / "skills"
    skills.mkdir(parents=True)
    (skills / "deploy.md").write_text(
        "---\nname: deploy\ntriggers: [ship it]\n---\nHow to deploy.\n"
    )
    page = (await client.get("/api/v1/skills/search")).json()
    [skill] = [one for one in page["items"] if one["name"] == "deploy"]
    assert (skill["type"], skill["triggers"]) == ("knowledge", ["ship it"])
