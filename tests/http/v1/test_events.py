"""Stored events of version 1, and what sandboxes call back."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import ServerConfig
from tests.noting_threads import NotingThreads
from tests.service import Client, Service
from tests.streams import Stream, open_lines, open_socket, path_of

UNKNOWN_ID = "0" * 32
HOOKS = "/api/v1/webhooks"


def _path(conversation_id: str) -> str:
    return f"/api/v1/conversation/{conversation_id}/events"


def _event(number: int, **members: Any) -> dict[str, Any]:
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2030-01-01T00:00:{number:02d}.000000",
        "source": "agent",
        "kind": "MessageEvent",
        "nothing": None,
        **members,
    }


async def _quiet(client: Client, service: Service) -> tuple[str, Client]:
    """Return a conversation in which nothing happens, and a client with its sandbox's key."""
    conversation_id = await client.start_conversation(None)
    found = await client.conversation(conversation_id)
    return conversation_id, service.client_with(found["session_api_key"])


async def _count(client: Client, conversation_id: str, query: str = "") -> int:
    answer = await client.get(f"{_path(conversation_id)}/count{query}")
    assert answer.status == 200, answer.text
    return int(answer.text)


async def test_delivered_events_are_stored_once_and_sent_as_they_came(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    raw = [
        b'{ "kind":"MessageEvent","source":"user",',
        b'"id":"x-1","timestamp":"2030-01-01T00:00:00",',
    ]
    raw += [b'"big":123456789012345678901234567890,"float":1.50,"text":"\\u00e9"}']
    event = b"".join(raw)
    path = f"{HOOKS}/events/{conversation_id}"
    for _ in range(2):
        headers = {"Content-Type": "application/json"}
        answer = await sandbox.post(path, data=b"[" + event + b"]", headers=headers)
        assert (answer.status, answer.json()) == (200, {"success": True})
    query = "?kind__eq=MessageEvent"
    page = await client.get(f"{_path(conversation_id)}/search{query}")
    assert page.body == b'{"items":[' + event + b'],"next_page_id":null}'
    batch = await client.get(f"{_path(conversation_id)}?id=x-1&id=nothing")
    assert batch.body == b"[" + event + b",null]"


async def test_events_are_filtered_sorted_counted_and_paged(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    events = [_event(n, kind="ActionEvent" if n % 2 else "MessageEvent") for n in (3, 1, 4, 2, 5)]
    assert (await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=events)).status == 200
    since = "timestamp__gte=2030"
    assert await _count(client, conversation_id, f"?{since}-01-01") == 5
    assert await _count(client, conversation_id, f"?{since}-01-01T00:00:02") == 4
    assert await _count(client, conversation_id, f"?{since}-01-01&kind__eq=ActionEvent") == 3
    between = "?timestamp__gte=2030-01-01T00:00:01&timestamp__lt=2030-01-01T00:00:03.000000"
    assert await _count(client, conversation_id, between) == 2

    async def seconds(query: str) -> tuple[list[int], str | None]:
        answer = await client.get(f"{_path(conversation_id)}/search?{since}-01-01&{query}")
        page = answer.json()
        return [int(item["id"][-2:]) for item in page["items"]], page["next_page_id"]

    first, next_page_id = await seconds("limit=3")
    assert first == [1, 2, 3]
    assert await seconds(f"limit=3&page_id={next_page_id}") == ([4, 5], None)
    assert (await seconds("sort_order=TIMESTAMP_DESC"))[0] == [5, 4, 3, 2, 1]
    assert (await seconds("kind__eq=MessageEvent"))[0] == [2, 4]


async def test_the_older_paths_name_the_conversation_in_the_query(client: Client) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    query = f"?conversation_id__eq={conversation_id}"
    found = (await client.get(f"/api/v1/events/search{query}&limit=1")).json()
    assert len(found["items"]) == 1
    assert (await client.get("/api/v1/events/count")).status == 422
    assert (await client.get("/api/v1/events/count?conversation_id__eq=zzz")).status == 422


async def test_the_older_count_leaves_out_what_the_agent_servers_socket_does_not_replay(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    state = {"kind": "ConversationStateUpdateEvent", "value": {}}
    told = [_event(1), _event(2, key="stats", **state), _event(3, key="full_state", **state)]
    query = f"?conversation_id__eq={conversation_id}&timestamp__gte=2030-01-01"
    assert (await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=told)).status == 200
    assert (await client.get(f"/api/v1/events/count{query}")).json() == 2
    assert len((await client.get(f"/api/v1/events/search{query}")).json()["items"]) == 3


async def test_an_unknown_conversation_has_no_events(client: Client) -> None:
    page = (await client.get(f"{_path(UNKNOWN_ID)}/search")).json()
    assert page == {"items": [], "next_page_id": None}
    assert await _count(client, UNKNOWN_ID) == 0
    assert (await client.get(f"{_path(UNKNOWN_ID)}?id=x")).json() == [None]


async def test_another_users_events_are_not_shown(client: Client, service: Service) -> None:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    event_id = (await client.events(conversation_id))[0]["id"]
    other = await service.make_client("somebody else", Role.MEMBER)
    assert await other.events(conversation_id) == []
    assert await _count(other, conversation_id) == 0
    assert (await other.get(f"{_path(conversation_id)}?id={event_id}")).json() == [None]


@pytest.mark.parametrize(
    "query",
    [
        "kind__eq=Nonsense",
        "sort_order=SIDEWAYS",
        "timestamp__gte=yesterday",
        "timestamp__lt=%00",
        "limit=0",
        "limit=101",
        "page_id=zzz",
    ],
)
async def test_a_query_that_does_not_fit_is_refused(client: Client, query: str) -> None:
    answer = await client.get(f"{_path(UNKNOWN_ID)}/search?{query}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"][0] == "query"


async def test_a_batch_of_events_needs_one_to_a_hundred_ids(client: Client) -> None:
    assert (await client.get(_path(UNKNOWN_ID))).status == 422
    query = "&".join("id=x" for _ in range(101))
    assert (await client.get(f"{_path(UNKNOWN_ID)}?{query}")).status == 400


async def test_recorded_webhooks_are_taken(
    client: Client, service: Service, recorded_webhooks: list[tuple[str, bytes]]
) -> None:
    conversation_id = "11111111222233334444555555555555"
    await client.start_conversation(None, conversation_id=conversation_id)
    found = await client.conversation(conversation_id)
    sandbox = service.client_with(found["session_api_key"])
    for path, body in recorded_webhooks:
        headers = {"Content-Type": "application/json"}
        answer = await sandbox.post(path, data=body, headers=headers)
        assert (answer.status, answer.json()) == (200, {"success": True}), answer.text
    kinds = {event["kind"] for event in await client.events(conversation_id)}
    assert {"ActionEvent", "ObservationEvent", "SystemPromptEvent"} <= kinds
    found = await client.conversation(conversation_id)
    assert found["metrics"]["accumulated_token_usage"]["prompt_tokens"] > 0


@pytest.fixture
def recorded_webhooks() -> list[tuple[str, bytes]]:
    """Return the path and the body of each request that a real agent server was seen to make.

    They are moved to the future, since what is older than the fake agent's own report is not kept.
    """
    file = Path(__file__).parents[2] / "data" / "v1" / "agent-webhook-requests.jsonl"
    text = file.read_text().replace("2026-11-20T", "2099-11-20T")
    requests = [json.loads(line) for line in text.splitlines()]
    return [(each["path"], json.dumps(each["body"]).encode()) for each in requests]


async def test_an_event_larger_than_other_bodies_blocks_no_delivery(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    path = f"{HOOKS}/events/{conversation_id}"
    text = "x" * (ServerConfig().max_body_bytes + 1)
    body = io.BytesIO(json.dumps([_event(1, text=text), _event(2)]).encode())
    headers = {"Content-Type": "application/json"}
    answer = await sandbox.post(path, data=body, headers=headers)
    assert (answer.status, answer.json()) == (200, {"success": True})
    found = await client.get(f"{_path(conversation_id)}/search?timestamp__gte=2030-01-01")
    stub, event = found.json()["items"]
    assert (stub["id"], stub["truncated"]) == (_event(1)["id"], True)
    assert stub["size"] > len(text)
    assert event == _event(2)


async def test_the_older_webhook_paths_name_the_sandbox(client: Client, service: Service) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    path = f"{HOOKS}/{sandbox_id}/events/{conversation_id}"
    assert (await sandbox.post(path, json=[_event(1)])).status == 200
    assert await _count(client, conversation_id, "?timestamp__gte=2030-01-01") == 1
    path = f"{HOOKS}/{sandbox_id}/conversations"
    assert (await sandbox.post(path, json={"id": conversation_id})).status == 200
    assert (await sandbox.post(f"{HOOKS}/other/conversations", json={})).status == 403


async def test_a_sandbox_tells_only_of_its_own_conversations(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    _, other = await _quiet(client, service)
    answer = await other.post(f"{HOOKS}/events/{conversation_id}", json=[_event(1)])
    assert answer.status == 404
    assert await _count(client, conversation_id, "?timestamp__gte=2030-01-01") == 0
    answer = await other.post(f"{HOOKS}/conversations", json={"id": conversation_id})
    assert answer.status == 404


async def test_a_conversation_that_the_server_did_not_start_is_adopted(
    client: Client, service: Service
) -> None:
    _, sandbox = await _quiet(client, service)
    told = {"id": "11111111-2222-3333-4444-555555555555", "title": "Started inside"}
    assert (await sandbox.post(f"{HOOKS}/conversations", json=told)).status == 200
    found = await client.conversation("11111111222233334444555555555555")
    assert found["title"] == "Started inside"


async def test_webhooks_need_the_key_of_a_running_sandbox(client: Client, service: Service) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    path = f"{HOOKS}/events/{conversation_id}"
    for caller in (client, service.client_with(None)):
        answer = await caller.post(path, json=[_event(1)])
        assert (answer.status, answer.json()["detail"]) == (401, "Invalid session API key")
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    assert (await sandbox.post(path, json=[_event(1)])).status == 401


@pytest.mark.parametrize("body", [{}, [1], ["x"], [[]], None])
async def test_a_delivery_that_is_no_list_of_objects_is_refused(
    client: Client, service: Service, body: Any
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    answer = await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=body)
    assert answer.status == 422


async def test_a_bad_event_does_not_keep_the_others_out(client: Client, service: Service) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    delivery = [{"kind": "no id"}, _event(1), {"id": 7}]
    assert (await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=delivery)).status == 200
    assert await _count(client, conversation_id, "?timestamp__gte=2030-01-01") == 1


@pytest.mark.parametrize("body", [{}, {"id": 1}, {"id": "zzz"}, [], {"id": UNKNOWN_ID, "tags": 1}])
async def test_a_report_of_a_conversation_that_does_not_fit_is_refused(
    client: Client, service: Service, body: Any
) -> None:
    _, sandbox = await _quiet(client, service)
    answer = await sandbox.post(f"{HOOKS}/conversations", json=body)
    assert 400 <= answer.status < 500


async def test_a_client_with_an_older_sdk_gets_what_that_reads_and_all_others_everything(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    events = [
        _event(1, kind="SecurityAnalysisEvent", parent_id="x"),
        _event(2, parent_id="x"),
    ]
    assert (await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=events)).status == 200
    old = service.client_with(f"{client.key}~sdk-1.30")
    path = f"{_path(conversation_id)}/search?timestamp__gte=2030-01-01"
    assert (await old.get(path)).json()["items"] == [_event(2)]
    assert (await client.get(path)).json()["items"] == events
    of_kind = f"{path}&kind__eq=SecurityAnalysisEvent"
    assert (await old.get(of_kind)).json()["items"] == []
    assert (await client.get(of_kind)).json()["items"] == events[:1]
    wanted = f"{_path(conversation_id)}?id={events[0]['id']}&id={events[1]['id']}"
    assert (await old.get(wanted)).json() == [None, _event(2)]
    assert (await client.get(wanted)).json() == events
    # Other versions are known by the sandbox's own key, too.
    found = await old.conversation(conversation_id)
    assert found["session_api_key"] == f"{sandbox.key}~sdk-1.30"
    path = path_of(conversation_id)
    query = f"{path}?session_api_key={old.key}"
    for open_stream in (open_lines(old, path), open_socket(service.client_with(None), query)):
        async with open_stream as stream:
            assert await _since_2030(stream) == [_event(2)]
    async with open_lines(client, path) as stream:
        assert await _since_2030(stream) == events
    late = {"type": "auth", "session_api_key": old.key}
    async with open_socket(service.client_with(None), path) as socket:
        await socket.socket.send_json(late)
        assert await _since_2030(socket) == [_event(2)]


async def _since_2030(stream: Stream) -> list[Any]:
    """Return the events of the test itself that a stream begins with."""
    told = await stream.until("ready")
    return [one.data for one in told if one.type == "event" and one.data["timestamp"] >= "2030"]


async def test_a_large_event_is_put_into_another_form_while_others_have_their_turn(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox = await _quiet(client, service)
    events = [_event(1, text="x" * 300_000, parent_id="x"), _event(2, parent_id="x")]
    assert (await sandbox.post(f"{HOOKS}/events/{conversation_id}", json=events)).status == 200
    old = service.client_with(f"{client.key}~sdk-1.30")
    asyncio.get_running_loop().set_default_executor(threads := NotingThreads())
    found = await old.get(f"{_path(conversation_id)}?id={events[0]['id']}&id={events[1]['id']}")
    assert (len(found.json()), threads.count("Reader.event ")) == (2, 1)
    async with open_lines(old, path_of(conversation_id)) as stream:
        assert len(await _since_2030(stream)) == 2
    assert threads.count("Reader.event ") == 2
