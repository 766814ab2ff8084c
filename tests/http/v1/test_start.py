"""Starting conversations: what is asked, what is echoed, what the task tells."""

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from agentsvc.http.v1.start_tasks import SECRETS_MAX
from tests.fake_agent import FakeAgent
from tests.service import Client, Service

START = "/api/v1/app-conversations"
TASKS = f"{START}/start-tasks"
UNKNOWN_ID = "0" * 32
EMPTY_REQUEST: dict[str, Any] = {
    "sandbox_id": None,
    "conversation_id": None,
    "initial_message": None,
    "system_message_suffix": None,
    "processors": None,
    "llm_model": None,
    "agent_profile_id": None,
    "selected_repository": None,
    "selected_branch": None,
    "git_provider": None,
    "suggested_task": None,
    "title": None,
    "trigger": None,
    "pr_number": [],
    "parent_conversation_id": None,
    "agent_type": "default",
    "public": None,
    "plugins": None,
    "secrets": None,
}
CHOSEN_ID = "11111111222233334444555555555555"
TEXT = {"type": "text", "text": "hello", "cache_prompt": False}


async def test_an_empty_order_is_answered_with_a_working_task(client: Client) -> None:
    task = await client.start_task(None)
    assert task.pop("created_at") == task.pop("updated_at")
    assert len(task.pop("id")) == 32
    [stage] = task.pop("stages")
    assert stage.pop("started_at")
    assert stage == {"status": "WORKING", "duration_ms": None, "parts": {}, "note": None}
    assert task == {
        "created_by_user_id": None,
        "status": "WORKING",
        "detail": None,
        "app_conversation_id": None,
        "sandbox_id": None,
        "agent_server_url": None,
        "request": EMPTY_REQUEST,
        "queue_position": None,
        "queued_messages": 0,
    }


async def test_every_field_is_echoed_and_secrets_are_masked(client: Client) -> None:
    given = {
        "sandbox_id": "some-sandbox",
        "conversation_id": CHOSEN_ID,
        "initial_message": {"role": "user", "content": [TEXT], "run": False},
        "system_message_suffix": "be brief",
        "llm_model": "openai/other",
        "selected_repository": "owner/name",
        "selected_branch": "main",
        "git_provider": "gitlab",
        "title": "A title",
        "trigger": "gui",
        "pr_number": [1, 2],
        "agent_type": "plan",
        "public": True,
        "plugins": [{"source": "s", "ref": None, "repo_path": "p", "parameters": {"a": [1]}}],
        "secrets": {"TOKEN": "very-secret-value"},
    }
    task = await client.start_task(None, **given, processors=[{"kind": "x"}], unknown="ignored")
    masked = {"secrets": {"TOKEN": "**********"}}
    assert task["request"] == {**EMPTY_REQUEST, **given, **masked}
    [again] = (await client.get(f"{TASKS}?ids={task['id']}")).json()
    assert again["request"] == task["request"]


@pytest.mark.parametrize(
    ("given", "loc", "words"),
    [
        ({"agent_profile_id": "x"}, ["agent_profile_id"], "leave `agent_profile_id` out"),
        ({"secrets": {"MY-KEY": "x"}}, ["secrets", "MY-KEY"], "letters, digits and `_`"),
        ({"secrets": {"1A": "x"}}, ["secrets", "1A"], "letters, digits and `_`"),
        ({"secrets": {"LLM_KEY": "x"}}, ["secrets", "LLM_KEY"], "reserved"),
        ({"secrets": {"WORKER_1": "x"}}, ["secrets", "WORKER_1"], "reserved"),
        ({"initial_message": {}}, ["initial_message", "content"], "Field required"),
        (
            {"initial_message": {"content": [{"type": "text", "text": " "}]}},
            ["initial_message", "content"],
            "a text or an image",
        ),
        (
            {"initial_message": {"content": [{"type": "image", "image_urls": []}]}},
            ["initial_message", "content"],
            "a text or an image",
        ),
    ],
)
async def test_what_can_never_work_is_refused_with_what_can(
    client: Client, given: dict[str, Any], loc: list[str], words: str
) -> None:
    for path in (START, f"{START}/stream-start"):
        answer = await client.post(path, json=given)
        assert answer.status == 422, answer.text
        [problem] = answer.json()["detail"]
        assert problem["loc"] == ["body", *loc]
        assert words in problem["msg"]


async def test_an_empty_form_beside_what_made_it_start_is_no_message(client: Client) -> None:
    empty = {"content": [{"type": "text", "text": ""}]}
    image = {"type": "image", "image_urls": ["data:image/png;base64,AA=="], "cache_prompt": False}
    told = await client.start_task(None, initial_message=empty, trigger="gui")
    assert told["request"]["initial_message"] is None
    shown = {**empty, "content": [*empty["content"], image]}
    told = await client.start_task(None, initial_message=shown, agent_profile_id="")
    assert told["request"]["initial_message"]["content"][1] == image
    assert told["request"]["agent_profile_id"] is None


async def test_a_suggested_task_is_echoed(client: Client) -> None:
    suggestion = {
        "git_provider": "github",
        "task_type": "FAILING_CHECKS",
        "repo": "owner/name",
        "issue_number": 7,
        "title": "Fix it",
    }
    task = await client.start_task(None, suggested_task=suggestion)
    assert task["request"]["suggested_task"] == suggestion


async def test_a_suggested_task_and_a_message_together_are_refused(client: Client) -> None:
    suggestion = {
        "git_provider": "github",
        "task_type": "OPEN_ISSUE",
        "repo": "owner/name",
        "issue_number": 7,
        "title": "Fix it",
    }
    body = {"suggested_task": suggestion, "initial_message": {"content": [TEXT]}}
    answer = await client.post(START, json=body)
    assert answer.status == 400


async def test_an_unknown_parent_is_not_found(client: Client) -> None:
    answer = await client.post(START, json={"parent_conversation_id": UNKNOWN_ID})
    assert answer.status == 404


async def test_a_task_that_is_ready_names_its_conversation(
    client: Client, service: Service
) -> None:
    task = await client.start_task(None, conversation_id=CHOSEN_ID, title="Mine")
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY"
    assert ended["app_conversation_id"] == CHOSEN_ID
    assert ended["sandbox_id"]
    assert ended["agent_server_url"] == f"{service.url}/sandboxes/{ended['sandbox_id']}/agent"
    assert ended["created_at"].endswith("Z")


async def test_the_same_order_with_an_id_is_answered_with_the_same_task(client: Client) -> None:
    first = await client.start_task(None, conversation_id=CHOSEN_ID, title="Mine")
    assert (await client.start_task(None, conversation_id=CHOSEN_ID, title="Mine"))["id"] == first[
        "id"
    ]
    body = {"conversation_id": CHOSEN_ID, "title": "Another"}
    assert (await client.post(START, json=body)).status == 409


async def test_an_unknown_sandbox_ends_in_an_error_that_names_it(client: Client) -> None:
    task = await client.start_task(None, sandbox_id="nowhere")
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    assert "Sandbox not found: nowhere" in ended["detail"]
    assert ended["app_conversation_id"] is None


@pytest.mark.parametrize(
    "content",
    [
        {"type": "text", "text": "hello"},
        {"text": "hello"},
        {"type": "image", "image_urls": ["https://x.example/a.png", "data:image/png;base64,AA=="]},
        {"image_urls": ["http://x.example/a.png"], "cache_prompt": True, "more": 1},
        {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
    ],
)
async def test_a_message_has_texts_and_images(client: Client, content: dict[str, Any]) -> None:
    task = await client.start_task(None, initial_message={"content": [content]})
    [echoed] = task["request"]["initial_message"]["content"]
    assert echoed["type"] == ("text" if "text" in content else "image")


@pytest.mark.parametrize(
    ("content", "loc"),
    [
        ({"type": "text", "text": "hello", "more": 1}, ["more"]),
        ({"type": "text"}, ["text"]),
        ({"type": "text", "text": 1}, ["text"]),
        ({"type": "video", "text": "hello"}, ["type"]),
        ({"type": "image", "image_urls": ["file:///etc/passwd"]}, ["image_urls", 0]),
        ({"type": "image_url", "image_url": {}}, ["image_url", "url"]),
        ("hello", []),
    ],
)
async def test_other_content_is_refused_with_its_place(
    client: Client, content: Any, loc: list[str]
) -> None:
    body = {"initial_message": {"content": [TEXT, content]}}
    answer = await client.post(START, json=body)
    assert answer.status == 422
    [problem] = answer.json()["detail"]
    assert problem["loc"] == ["body", "initial_message", "content", 1, *loc]


@pytest.mark.parametrize(
    "body",
    [
        {"secrets": {f"NAME_{number}": "x" for number in range(SECRETS_MAX + 1)}},
        {"secrets": {"N" * 257: "x"}},
        {"secrets": {"NAME": "x" * 65537}},
        {"secrets": {"": "x"}},
        {"secrets": {"NAME": None}},
        {"conversation_id": "zzz"},
        {"agent_type": "other"},
        {"git_provider": "sourceforge"},
        {"trigger": "boredom"},
        {"pr_number": ["1"]},
        {"pr_number": [2**63]},
        {"plugins": [{}]},
        {"initial_message": {"role": "boss", "content": [TEXT]}},
        {"title": 1},
        {"public": "yes"},
    ],
)
async def test_what_does_not_fit_the_request_is_refused(
    client: Client, body: dict[str, Any]
) -> None:
    answer = await client.post(START, json=body)
    assert answer.status == 422


async def test_fifty_secrets_of_64_kib_are_taken(client: Client) -> None:
    secrets = {f"NAME_{number}": "x" * 65536 for number in range(SECRETS_MAX)}
    body = io.BytesIO(json.dumps({"secrets": secrets}).encode())
    answer = await client.post(START, data=body, headers={"Content-Type": "application/json"})
    assert set(answer.json()["request"]["secrets"].values()) == {"**********"}


async def test_a_streamed_start_is_one_array_of_the_task_as_it_changes(client: Client) -> None:
    answer = await client.post(f"{START}/stream-start", json={"title": "Streamed"})
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    text = answer.text
    assert text.startswith("[\n{")
    tasks = json.loads(text)
    assert len({task["id"] for task in tasks}) == 1
    seen = list(dict.fromkeys(task["status"] for task in tasks))
    assert seen[0] == "WORKING"
    assert seen[-1] == "READY"
    assert len(seen) > 3


async def test_a_streamed_start_that_cannot_be_is_refused_as_usual(client: Client) -> None:
    answer = await client.post(f"{START}/stream-start", json={"parent_conversation_id": UNKNOWN_ID})
    assert answer.status == 404


async def test_a_client_that_leaves_a_streamed_start_does_not_stop_it(client: Client) -> None:
    headers = {"X-Session-API-Key": client.key or "", "Content-Type": "application/json"}
    url = f"{client.base_url}{START}/stream-start"
    async with aiohttp.request("POST", url, data=b"{}", headers=headers) as answer:
        line = await answer.content.readuntil(b"},\n")
    task_id = json.loads(line.removeprefix(b"[\n").removesuffix(b",\n"))["id"]
    assert (await client.end_of_start(task_id))["status"] == "READY"


async def test_the_first_message_reaches_the_agent(client: Client, fake_agent: FakeAgent) -> None:
    known = fake_agent.find_conversation(await client.start_conversation("hello there"))
    assert known is not None
    assert "hello there" in json.dumps(known.body)


async def test_start_tasks_are_found_in_the_order_of_their_ids(client: Client) -> None:
    one, two = await client.start_task(None), await client.start_task(None)
    path = f"{TASKS}?ids={two['id']}&ids={UNKNOWN_ID}&ids={one['id']}"
    found = (await client.get(path)).json()
    assert [task and task["id"] for task in found] == [two["id"], None, one["id"]]


async def test_a_batch_of_start_tasks_needs_one_to_a_hundred_ids(client: Client) -> None:
    path = f"{TASKS}"
    assert (await client.get(path)).status == 422
    assert (await client.get(f"{path}?ids=zzz")).status == 422
    too_many = "&".join(f"ids={UNKNOWN_ID}" for _ in range(101))
    answer = await client.get(f"{path}?{too_many}")
    assert answer.status == 400
    assert "Too many ids" in answer.json()["detail"]


async def test_start_tasks_are_listed_counted_and_paged(client: Client) -> None:
    ids = [(await client.start_task(None))["id"] for _ in range(3)]
    path = f"{TASKS}"
    first = (await client.get(f"{path}/search?limit=2")).json()
    assert [task["id"] for task in first["items"]] == [ids[2], ids[1]]
    rest = (await client.get(f"{path}/search?limit=2&page_id={first['next_page_id']}")).json()
    assert [task["id"] for task in rest["items"]] == [ids[0]]
    assert rest["next_page_id"] is None
    oldest = (await client.get(f"{path}/search?sort_order=CREATED_AT")).json()
    assert [task["id"] for task in oldest["items"]] == ids
    assert (await client.get(f"{path}/count")).json() == 3


async def test_start_tasks_are_filtered(client: Client) -> None:
    await client.start_task(None, conversation_id=CHOSEN_ID)
    later = await client.start_task(None)
    path = f"{TASKS}"
    assert (await client.get(f"{path}/count?conversation_id__eq={CHOSEN_ID}")).json() == 1
    found = (await client.get(f"{path}/search?created_at__gte={later['created_at']}")).json()
    assert [task["id"] for task in found["items"]] == [later["id"]]
    naive = later["created_at"].removesuffix("Z")
    assert (await client.get(f"{path}/count?created_at__gte={naive}")).json() == 1
    assert (await client.get(f"{path}/count?created_at__gte=2999-01-01")).json() == 0


async def test_starts_at_once_are_all_taken(client: Client) -> None:
    tasks = await asyncio.gather(*(client.start_task(None) for _ in range(10)))
    assert len({task["id"] for task in tasks}) == 10


async def test_a_password_in_the_url_of_a_repository_is_refused_and_kept_nowhere(
    client: Client, service: Service
) -> None:
    url = "https://user:pass-word-1@git.example.org/a/b"
    for path, body in (
        ("/api/v1/app-conversations", {"selected_repository": url}),
        ("/api/conversations", {"repository": url}),
    ):
        answer = await client.post(path, json=body)
        assert (answer.status, answer.json()["code"]) == (422, "invalid_request")
        assert "pass-word-1" not in answer.text
    tasks = await client.get("/api/v1/app-conversations/start-tasks/search")
    assert tasks.json()["items"] == []
    assert [
        file for file in service.data_dir.glob("*.db*") if b"pass-word-1" in file.read_bytes()
    ] == []
