"""What settings do to the start of a conversation: joined sandboxes, and the model for titles."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.testing.backend import WORKING_DIR
from tests.service import Client, Service
from tests.troubles import TroubledAgent, TroubledWorld

SETTINGS = "/api/v1/settings"
LLM = {"model": "openai/titles", "api_key": "title-key-1"}


async def save(client: Client, **fields: Any) -> None:
    answer = await client.post(SETTINGS, json=fields)
    assert answer.status == 200, answer.text


async def start(client: Client, **order: Any) -> tuple[str, str]:
    """Start a conversation and return its id and that of its sandbox."""
    conversation_id = await client.start_conversation(None, **order)
    return conversation_id, (await client.conversation(conversation_id))["sandbox_id"]


# Grouping


async def test_without_grouping_every_conversation_has_a_sandbox_of_its_own(
    client: Client,
) -> None:
    assert (await start(client))[1] != (await start(client))[1]


@pytest.mark.parametrize(
    "strategy",
    ["GROUP_BY_NEWEST", "LEAST_RECENTLY_USED", "FEWEST_CONVERSATIONS", "ADD_TO_ANY"],
)
async def test_grouped_conversations_share_a_sandbox_in_directories_of_their_own(
    client: Client, fake_agent: TroubledAgent, fake_world: TroubledWorld, strategy: str
) -> None:
    await save(client, sandbox_grouping_strategy=strategy)
    conversations = [await start(client) for _ in range(3)]
    assert len({sandbox_id for _, sandbox_id in conversations}) == 1
    assert fake_world.count("create") == 1
    for conversation_id, _ in conversations:
        body = fake_agent.conversation_of(conversation_id).body
        assert body["workspace"]["working_dir"] == f"{WORKING_DIR}/{conversation_id}"


@pytest.mark.parametrize(("strategy", "chosen"), [("ADD_TO_ANY", 0), ("GROUP_BY_NEWEST", 1)])
async def test_the_oldest_or_the_newest_sandbox_is_joined(
    client: Client, strategy: str, chosen: int
) -> None:
    made = [(await start(client))[1] for _ in range(2)]
    await save(client, sandbox_grouping_strategy=strategy)
    assert (await start(client))[1] == made[chosen]


async def test_the_sandbox_with_the_fewest_conversations_is_joined(client: Client) -> None:
    first = [await start(client) for _ in range(2)]
    await start(client, sandbox_id=first[0][1])
    await save(client, sandbox_grouping_strategy="FEWEST_CONVERSATIONS")
    assert (await start(client))[1] == first[1][1]


async def test_a_sandbox_that_is_named_paused_or_of_another_user_is_not_joined(
    client: Client, service: Service
) -> None:
    await save(client, sandbox_grouping_strategy="ADD_TO_ANY")
    _, first = await start(client)
    other = await service.make_client("ada", Role.MEMBER)
    await other.save_settings()
    await save(other, sandbox_grouping_strategy="ADD_TO_ANY")
    assert (await start(other))[1] != first
    await client.post(f"/api/v1/sandboxes/{first}/pause")
    _, second = await start(client)
    assert second != first
    assert (await start(client, sandbox_id=first))[1] == first


async def test_a_shared_sandbox_goes_with_its_last_conversation(
    client: Client, fake_world: TroubledWorld
) -> None:
    await save(client, sandbox_grouping_strategy="ADD_TO_ANY")
    (one, sandbox_id), (two, _) = await start(client), await start(client)
    await client.delete(f"/api/v1/app-conversations/{one}")
    assert await client.sandbox(sandbox_id) is not None
    await client.delete(f"/api/v1/app-conversations/{two}")
    assert await client.sandbox(sandbox_id) is None


# Titles


async def keep_profile(client: Client, name: str = "titles") -> None:
    answer = await client.post(f"{SETTINGS}/profiles/{name}", json={"llm": LLM})
    assert answer.status == 201, answer.text
    await save(client, title_llm_profile=name)


async def test_titles_are_made_with_the_saved_model_that_is_named(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await keep_profile(client)
    conversation_id, sandbox_id = await start(client)
    assert fake_agent.conversation_of(conversation_id).body["title_llm_profile"] == "titles"
    profile = fake_agent.sandboxes[sandbox_id].profiles["titles"]
    assert (profile["model"], profile["api_key"]) == ("openai/titles", "title-key-1")


async def test_a_saved_model_without_a_key_makes_titles_with_the_usual_one(
    client: Client, fake_agent: TroubledAgent
) -> None:
    body = {"llm": LLM, "include_secrets": False}
    await client.post(f"{SETTINGS}/profiles/titles", json=body)
    await save(client, title_llm_profile="titles")
    _, sandbox_id = await start(client)
    assert fake_agent.sandboxes[sandbox_id].profiles["titles"]["api_key"] == "model-key-1"


async def test_a_conversation_that_has_its_title_needs_no_model_for_one(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await keep_profile(client)
    conversation_id, sandbox_id = await start(client, title="Mine")
    assert "title_llm_profile" not in fake_agent.conversation_of(conversation_id).body
    assert fake_agent.sandboxes[sandbox_id].profiles == {}


async def test_an_unknown_model_for_titles_fails_no_start(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await save(client, title_llm_profile="nothing")
    conversation_id, _ = await start(client)
    assert "title_llm_profile" not in fake_agent.conversation_of(conversation_id).body


async def test_a_refused_model_for_titles_fails_no_start(
    client: Client, fake_agent: TroubledAgent
) -> None:
    await keep_profile(client)
    _, sandbox_id = await start(client)
    fake_agent.sandboxes[sandbox_id].fail_next(422, "/api/profiles/titles")
    conversation_id, _ = await start(client, sandbox_id=sandbox_id)
    assert "title_llm_profile" not in fake_agent.conversation_of(conversation_id).body
