"""Conversations of version 1: found, listed, changed, deleted, talked to."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.data_directory import DataDirectory
from agentsvc.storage.database import Database, Transaction
from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service

PATH = "/api/v1/app-conversations"
UNKNOWN_ID = "0" * 32
NEW_TEXT = [{"type": "text", "text": "one more thing"}]


async def _ids(client: Client, query: str = "") -> list[str]:
    answer = await client.get(f"{PATH}/search{query}")
    assert answer.status == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def test_a_conversation_has_every_field_of_the_contract(client: Client) -> None:
    conversation_id = await client.start_conversation(title="Mine", trigger="gui", pr_number=[3])
    found = await client.wait_for_execution(conversation_id, "finished")
    assert set(found) == {
        "id",
        "created_by_user_id",
        "sandbox_id",
        "selected_repository",
        "selected_branch",
        "git_provider",
        "title",
        "trigger",
        "pr_number",
        "llm_model",
        "agent_kind",
        "metrics",
        "parent_conversation_id",
        "sub_conversation_ids",
        "public",
        "tags",
        "labels",
        "queued_messages",
        "created_at",
        "updated_at",
        "sandbox_status",
        "execution_status",
        "conversation_url",
        "session_api_key",
        "acp_server",
        "launched_agent_profile",
    }
    assert found["id"] == conversation_id
    assert found["sandbox_status"] == "RUNNING"
    assert found["conversation_url"].endswith(f"/api/conversations/{conversation_id}")
    assert found["session_api_key"]
    assert (found["title"], found["trigger"], found["pr_number"]) == ("Mine", "gui", [3])
    assert found["created_at"].endswith("Z")
    assert found["metrics"]["accumulated_token_usage"]["prompt_tokens"] > 0


async def test_conversations_come_in_the_order_of_their_ids(client: Client) -> None:
    one, two = await client.start_conversation(None), await client.start_conversation(None)
    dashed = f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}"
    answer = await client.get(f"{PATH}?ids={two}&ids={UNKNOWN_ID}&ids={dashed}")
    assert [item and item["id"] for item in answer.json()] == [two, None, one]


async def test_without_ids_a_page_is_listed(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    answer = await client.get(PATH)
    page = answer.json()
    assert [item["id"] for item in page["items"]] == [conversation_id]
    assert page["next_page_id"] is None


async def test_a_bad_id_among_many_is_named(client: Client) -> None:
    answer = await client.get(f"{PATH}?ids={UNKNOWN_ID}&ids=zzz")
    assert answer.status == 400
    assert answer.json()["detail"] == "Invalid UUID format for ids: ['zzz']"


async def test_at_most_99_conversations_are_asked_for_at_once(client: Client) -> None:
    query = "&".join(f"ids={UNKNOWN_ID}" for _ in range(99))
    assert (await client.get(f"{PATH}?{query}")).json() == [None] * 99
    answer = await client.get(f"{PATH}?{query}&ids={UNKNOWN_ID}")
    assert answer.status == 400
    assert answer.json()["detail"] == "Too many ids requested. Maximum is 99."


async def test_one_conversation_is_got_by_its_id(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    assert (await client.get(f"{PATH}/{conversation_id}")).json()["id"] == conversation_id
    assert (await client.get(f"{PATH}/{UNKNOWN_ID}")).status == 404
    assert (await client.get(f"{PATH}/zzz")).status == 422


async def test_what_another_process_stores_is_seen_at_once(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    path, page = f"{PATH}/{conversation_id}", f"{PATH}/search"
    database = await Database.open(DataDirectory(path=service.data_dir).database)
    try:
        for title in ("first", "second"):

            async def rename(tx: Transaction, title: str = title) -> None:
                await tx.run("UPDATE conversations SET title = :title", {"title": title})

            await database.write(rename)
            for _ in range(2):
                assert (await client.get(path)).json()["title"] == title
                assert [item["title"] for item in (await client.get(page)).json()["items"]] == [
                    title
                ]
    finally:
        await database.close()


async def test_another_users_conversation_does_not_exist(client: Client, service: Service) -> None:
    conversation_id = await client.start_conversation(None)
    other = await service.make_client("somebody else", Role.MEMBER)
    path = f"{PATH}/{conversation_id}"
    assert (await other.get(f"{PATH}?ids={conversation_id}")).json() == [None]
    assert (await other.get(path)).status == 404
    assert (await other.patch(path, json={"title": "Stolen"})).status == 404
    assert (await other.delete(path)).status == 404
    body = {"content": NEW_TEXT}
    assert (await other.post(f"{path}/send-message", json=body)).status == 404
    assert await _ids(other) == []
    assert (await other.get(f"{PATH}/count")).json() == 0
    assert (await other.get(f"{PATH}/start-tasks/search")).json()["items"] == []


async def test_conversations_are_listed_newest_first_and_paged_by_key(client: Client) -> None:
    ids = [await client.start_conversation(None, title=title) for title in ("b", "c", "a")]
    first = (await client.get(f"{PATH}/search?limit=2")).json()
    assert [item["id"] for item in first["items"]] == [ids[2], ids[1]]
    newcomer = await client.start_conversation(None)
    rest = (await client.get(f"{PATH}/search?limit=2&page_id={first['next_page_id']}")).json()
    assert [item["id"] for item in rest["items"]] == [ids[0]]
    assert rest["next_page_id"] is None
    assert newcomer not in rest


async def test_a_page_that_is_exactly_full_is_the_last(client: Client) -> None:
    await client.start_conversation(None)
    await client.start_conversation(None)
    assert (await client.get(f"{PATH}/search?limit=2")).json()["next_page_id"] is None


async def test_conversations_are_sorted_as_asked(client: Client) -> None:
    b, c, a = [await client.start_conversation(None, title=title) for title in ("b", "c", "a")]
    assert await _ids(client, "?sort_order=CREATED_AT") == [b, c, a]
    assert await _ids(client, "?sort_order=TITLE") == [a, b, c]
    assert await _ids(client, "?sort_order=TITLE_DESC") == [c, b, a]
    await client.patch(f"{PATH}/{c}", json={"title": "changed"})
    assert (await _ids(client, "?sort_order=UPDATED_AT_DESC"))[0] == c
    assert (await _ids(client, "?sort_order=UPDATED_AT"))[-1] == c


async def test_a_page_id_of_another_order_is_refused(client: Client) -> None:
    await client.start_conversation(None)
    await client.start_conversation(None)
    page = (await client.get(f"{PATH}/search?limit=1")).json()
    query = f"?limit=1&sort_order=TITLE&page_id={page['next_page_id']}"
    assert (await client.get(f"{PATH}/search{query}")).status == 422


async def test_conversations_are_filtered(client: Client) -> None:
    one = await client.start_conversation(None, title="Fix the 100% Bug")
    two = await client.start_conversation(None, title="Something else")
    first = await client.conversation(one)
    second = await client.conversation(two)
    assert await _ids(client, "?title__contains=fix+THE") == [one]
    assert await _ids(client, "?title__contains=100%25") == [one]
    assert await _ids(client, "?title__contains=1_0") == []
    assert await _ids(client, f"?created_at__gte={second['created_at']}") == [two]
    assert await _ids(client, f"?created_at__lt={second['created_at']}") == [one]
    assert await _ids(client, f"?updated_at__lt={first['created_at']}") == []
    assert await _ids(client, f"?sandbox_id__eq={second['sandbox_id']}") == [two]
    assert (await client.get(f"{PATH}/count?title__contains=fix")).json() == 1
    assert (await client.get(f"{PATH}/count")).json() == 2


async def test_children_are_listed_only_when_asked_for_but_counted(client: Client) -> None:
    parent = await client.start_conversation(None)
    child = await client.start_conversation(None, parent_conversation_id=parent)
    assert await _ids(client) == [parent]
    assert set(await _ids(client, "?include_sub_conversations=true")) == {parent, child}
    assert (await client.get(f"{PATH}/count")).json() == 2
    assert (await client.conversation(parent))["sub_conversation_ids"] == [child]
    assert (await client.conversation(child))["parent_conversation_id"] == parent


async def test_what_is_sent_is_changed_and_null_clears(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    path = f"{PATH}/{conversation_id}"
    given = {
        "title": "New",
        "public": True,
        "selected_repository": "owner/name",
        "selected_branch": "main",
        "git_provider": "github",
    }
    changed = (await client.patch(path, json=given)).json()
    assert {name: changed[name] for name in given} == given
    cleared = (await client.patch(path, json={"public": None, "git_provider": None})).json()
    assert (cleared["public"], cleared["git_provider"], cleared["title"]) == (None, None, "New")
    assert (await client.patch(path, json={})).json()["selected_branch"] == "main"


@pytest.mark.parametrize(
    "body",
    [
        {"selected_repository": "owner"},
        {"selected_repository": "owner/name;rm"},
        {"selected_repository": "owner/$(name)"},
        {"selected_repository": "owner/na\nme"},
        {"selected_branch": "a..b"},
        {"selected_branch": "-x"},
        {"git_provider": "nobody"},
        {"title": 1},
        {"public": "yes"},
    ],
)
async def test_a_change_that_does_not_fit_is_refused(client: Client, body: dict[str, Any]) -> None:
    conversation_id = await client.start_conversation(None)
    answer = await client.patch(f"{PATH}/{conversation_id}", json=body)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"][0] == "body"


async def test_an_unknown_conversation_is_not_changed(client: Client) -> None:
    answer = await client.patch(f"{PATH}/{UNKNOWN_ID}", json={"title": "x"})
    assert (answer.status, answer.json()["detail"]) == (404, "unknown_app_conversation")
    assert (await client.patch(f"{PATH}/zzz", json={})).status == 422


async def test_a_deleted_conversation_is_gone_with_its_children_events_and_task(
    client: Client,
) -> None:
    parent = await client.start_conversation()
    child = await client.start_conversation(None, parent_conversation_id=parent)
    await client.wait_for_execution(parent, "finished")
    answer = await client.delete(f"{PATH}/{parent}")
    assert (answer.status, answer.json()) == (200, {"success": True})
    assert (await client.get(f"{PATH}?ids={parent}&ids={child}")).json() == [None, None]
    assert await client.events(parent) == []
    assert (await client.get(f"{PATH}/start-tasks/count")).json() == 0
    answer = await client.delete(f"{PATH}/{parent}")
    assert (answer.status, answer.json()["detail"]) == (404, "Conversation not found")


async def test_a_bad_id_is_not_deleted(client: Client) -> None:
    answer = await client.delete(f"{PATH}/zzz")
    assert (answer.status, answer.json()["detail"]) == (400, "Invalid conversation ID format")


async def test_a_message_reaches_the_agent_which_answers(
    client: Client, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation(None)
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json={"content": NEW_TEXT})
    assert answer.status == 200
    assert answer.json() == {"success": True, "sandbox_status": "RUNNING", "message": None}
    await client.wait_for_execution(conversation_id, "finished")
    known = fake_agent.find_conversation(conversation_id)
    assert known is not None
    assert "one more thing" in str(known.events)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"content": []},
        {"content": "text"},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": ""}]},
        {"content": NEW_TEXT, "role": "assistant"},
        {"content": NEW_TEXT, "run": "yes"},
    ],
)
async def test_a_message_that_does_not_fit_is_refused(client: Client, body: dict[str, Any]) -> None:
    answer = await client.post(f"{PATH}/{UNKNOWN_ID}/send-message", json=body)
    assert answer.status == 422


async def test_a_message_to_nobody_is_answered_with_the_dashed_id(client: Client) -> None:
    answer = await client.post(f"{PATH}/{UNKNOWN_ID}/send-message", json={"content": NEW_TEXT})
    assert answer.status == 404
    expected = "Conversation 00000000-0000-0000-0000-000000000000 not found"
    assert answer.json()["detail"] == expected


async def test_a_paused_conversation_keeps_what_is_stored_and_takes_no_message(
    client: Client,
) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.wait_for_execution(conversation_id, "finished"))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    found = await client.conversation(conversation_id)
    assert found["sandbox_status"] == "PAUSED"
    for name in ("execution_status", "conversation_url", "session_api_key"):
        assert found[name] is None
    assert found["metrics"]["accumulated_cost"] > 0
    assert await client.events(conversation_id)
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json={"content": NEW_TEXT})
    assert answer.status == 409
    assert answer.json()["detail"] == (
        f"Sandbox is PAUSED. Use POST /api/v1/sandboxes/{sandbox_id}/resume to resume it first."
    )


async def test_a_conversation_without_its_sandbox_is_missing_and_stays_readable(
    client: Client,
) -> None:
    conversation_id = await client.start_conversation()
    sandbox_id = (await client.wait_for_execution(conversation_id, "finished"))["sandbox_id"]
    assert (await client.delete(f"/api/v1/sandboxes/{sandbox_id}")).status == 200
    found = await client.conversation(conversation_id)
    assert (found["sandbox_status"], found["execution_status"]) == ("MISSING", None)
    assert await client.events(conversation_id)
    answer = await client.post(f"{PATH}/{conversation_id}/send-message", json={"content": NEW_TEXT})
    assert answer.status == 410


async def test_labels_are_the_users_own_and_putting_one_on_is_no_change(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    path = f"{PATH}/{conversation_id}"
    before = (await client.get(path)).json()
    assert before["labels"] == []
    given = {"labels": ["pinned", "Größe", "pinned"]}
    async with asyncio.timeout(client.patience):
        # Its agent may still be telling of its start.
        while (after := (await client.patch(path, json=given)).json()) != {
            **before,
            "labels": ["pinned", "Größe"],
        }:
            before = after
    for labels in (["  "], ["a\nb"], ["x" * 65], [str(i) for i in range(21)], [1]):
        assert (await client.patch(path, json={"labels": labels})).status == 422, labels
    assert (await client.patch(path, json={"labels": None})).json()["labels"] == []


async def _said(client: Client, words: str) -> Answer:
    return await client.get(f"/api/v1/messages/search?{urlencode({'text__contains': words})}")


async def test_what_was_said_is_found_by_its_words_and_by_nobody_else(
    client: Client, service: Service
) -> None:
    other = await service.make_client("somebody else", Role.MEMBER)
    conversation_id = await client.start_conversation('Say "Grüße" to the\nlast one')
    # It is ready before its agent has told of the message.
    await client.wait_for_execution(conversation_id, "finished")
    for words in ('say "grüße"', "the\nlast", "TO THE"):
        [found] = (await _said(client, words)).json()
        assert (found["conversation_id"], found["source"]) == (conversation_id, "user")
        assert found["excerpt"] == 'Say "Grüße" to the last one'
    assert (await _said(client, "100%_")).json() == []
    assert (await _said(other, "grüße")).json() == []
    assert (await _said(client, "x")).status == 422
