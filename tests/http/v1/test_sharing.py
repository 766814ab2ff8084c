"""Shared conversations: links, what they show, and what they never do."""

import asyncio
import base64
import html
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from click.testing import CliRunner
from yarl import URL

from agentsvc.accounts.keys import Role
from agentsvc.base.values import now
from agentsvc.cli import cli
from agentsvc.http.keys import DATABASE, SANDBOXES
from agentsvc.sandboxes import Target
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.steps import until
from tests.service import Answer, Client, Service

PATH = "/workspace/project/src/main.py"
CANARIES = {
    "custom": 'cust"om\nsecret-canary-1',
    "git": "ghx-canary-token-2",
    "model": "model-canary-key-3",
    "search": "search-canary-key-4",
    "tool": "tool-server-canary-5",
    "start": "start-canary-'6&é!<" + "0123456789" * 8,
    "number": "31415926535",
}


def event(number: int, kind: str, source: str = "agent", **members: Any) -> dict[str, Any]:
    return {
        "id": f"00000000-0000-4000-8000-{number:012d}",
        "timestamp": f"2030-01-01T00:00:{number:02d}.000000",
        "source": source,
        "kind": kind,
        **members,
    }


def message(number: int, text: str, source: str = "user") -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    role = "user" if source == "user" else "assistant"
    return event(
        number,
        "MessageEvent",
        source,
        llm_message={"role": role, "content": content},
        extended_content=[{"type": "text", "text": "what the server added"}],
    )


def work(text: str) -> list[dict[str, Any]]:
    """Return what an agent tells of some work, with a text wherever there can be one."""
    arguments = {"command": "create", "path": PATH, "file_text": text}
    return [
        message(1, f"please read {PATH} {text}"),
        event(
            2,
            "ActionEvent",
            thought=[{"type": "text", "text": f"I think {text}"}],
            tool_name="file_editor",
            tool_call_id="c1",
            tool_call={"id": "c1", "name": "file_editor", "arguments": json.dumps(arguments)},
            action={"kind": "FileEditorAction", **arguments},
            summary="write a file",
        ),
        event(
            3,
            "ObservationEvent",
            "environment",
            tool_name="file_editor",
            tool_call_id="c1",
            action_id="a",
            observation={
                "kind": "FileEditorObservation",
                "content": [{"type": "text", "text": f"wrote {PATH}: {text}"}],
                "path": PATH,
                "new_content": text,
                "is_error": False,
            },
        ),
        event(4, "ConversationStateUpdateEvent", key="full_state", value={"agent": text}),
        event(5, "SystemPromptEvent", system_prompt={"type": "text", "text": text}, tools=[]),
        message(6, f"done {text}", "agent"),
    ]


async def share(client: Client, conversation_id: str, **fields: Any) -> dict[str, Any]:
    body = {"conversation_id": conversation_id, **fields}
    answer = await client.post("/api/v1/shares", json=body)
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def told(service: Service, client: Client, events: Sequence[dict[str, Any]]) -> str:
    """Return a conversation of which a sandbox has told some events."""
    conversation_id = await client.start_conversation(None)
    key = (await client.conversation(conversation_id))["session_api_key"]
    path = f"/api/v1/webhooks/events/{conversation_id}"
    answer = await service.client_with(key).post(path, json=list(events))
    assert answer.status == 200, answer.text
    return conversation_id


def search_path(link: dict[str, Any], query: str = "") -> str:
    return f"/api/shared-events/search?conversation_id={link['id']}{query}"


async def read(reader: Client, link: dict[str, Any]) -> list[Answer]:
    """Return every answer that whoever has a link can get."""
    page = await reader.get(search_path(link))
    ids = [one["id"] for one in page.json()["items"]]
    first = ids[0] if ids else "none"
    many = "&".join(f"id={one}" for one in ids or ["none"])
    paths = [
        f"/api/shared-conversations?ids={link['id']}",
        f"/api/shared-events/count?conversation_id={link['id']}",
        f"/api/shared-events?conversation_id={link['id']}&{many}",
        f"/api/shared-events/{link['id']}/{first}",
        f"/shared/conversations/{link['id']}",
    ]
    return [page, *[await reader.get(path) for path in paths]]


async def test_whoever_has_a_link_reads_the_conversation_without_a_key(
    client: Client, service: Service
) -> None:
    conversation_id = await told(service, client, work("the text"))
    link = await share(client, conversation_id)
    reader = service.client_with(None)
    page, shared, count, many, one, shown = await read(reader, link)
    [found] = shared.json()
    assert (found["id"], found["sandbox_id"]) == (link["id"], "")
    kinds = [item["kind"] for item in page.json()["items"]]
    assert kinds == ["MessageEvent", "ActionEvent", "ObservationEvent", "MessageEvent"]
    assert count.json() == len(kinds)
    assert many.json() == page.json()["items"]
    assert one.json() == page.json()["items"][0]
    assert "what the server added" not in page.text
    assert "the text" in shown.text
    assert link["url"] == f"{service.url}/shared/conversations/{link['id']}"
    for answer in (page, shared, count, many, one, shown):
        assert answer.headers["X-Robots-Tag"] == "noindex, nofollow, noarchive"
        assert "no-store" in answer.headers["Cache-Control"]
        assert conversation_id not in answer.text


@pytest.mark.parametrize(
    ("state", "by_rule"),
    [("RUNNING", False), ("PAUSED", False), ("PAUSED", True), ("gone", False)],
)
async def test_reading_starts_and_wakes_no_sandbox(
    client: Client, service: Service, fake_world: FakeWorld, state: str, *, by_rule: bool
) -> None:
    conversation_id = await told(service, client, work("the text"))
    link = await share(client, conversation_id)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    if by_rule:
        idle = service.app[SANDBOXES].idle
        # What followed the start may use it for a moment more.
        await until(lambda: idle.cull(sandbox_id, Target.PAUSED, unused_since=now()))
    elif state == "PAUSED":
        await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    if state == "PAUSED":
        await client.wait_for_sandbox(sandbox_id, state)
    if state == "gone":
        await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
        await until(lambda: not fake_world.sandboxes)
    before = len(fake_world.calls)
    for answer in await read(service.client_with(None), link):
        assert answer.status == 200
    # Longer than the interval of the sweep, which does what was asked for.
    await asyncio.sleep(0.5)
    assert {name for name, _ in fake_world.calls[before:]} <= {"inspect", "scan", "usage"}
    found = await client.sandbox(sandbox_id)
    assert (found["status"] if found else "gone") == state


async def test_pages_of_shared_events_have_as_many_as_were_asked_for(
    client: Client, service: Service
) -> None:
    hidden = [event(20 + n, "ConversationStateUpdateEvent", key="x", value=1) for n in range(9)]
    events = [message(1, "first"), *hidden, message(40, "second"), message(41, "third")]
    link = await share(client, await told(service, client, events))
    reader = service.client_with(None)
    found: list[list[str]] = []
    page_id: str | None = ""
    while page_id is not None:
        query = f"&limit=2&page_id={page_id}"
        page = (await reader.get(search_path(link, query))).json()
        found.append([one["llm_message"]["content"][0]["text"] for one in page["items"]])
        page_id = page["next_page_id"]
    assert found == [["first", "second"], ["third"]]
    query = "&kind__eq=ConversationStateUpdateEvent"
    assert (await reader.get(search_path(link, query))).json()["items"] == []


async def test_nothing_that_is_shared_shows_a_secret_of_its_owner(
    client: Client, service: Service
) -> None:
    await client.save_settings(
        llm_api_key=CANARIES["model"],
        search_api_key=CANARIES["search"],
        mcp_config={"shttp_servers": [{"url": "https://a.example", "api_key": CANARIES["tool"]}]},
    )
    for name in ("custom", "number"):
        secret = {"name": name.upper(), "value": CANARIES[name]}
        assert (await client.post("/api/v1/secrets", json=secret)).status == 201
    tokens = {"provider_tokens": {"github": {"token": CANARIES["git"]}}}
    assert (await client.post("/api/add-git-providers", json=tokens)).status == 200
    conversation_id = await client.start_conversation(
        None, secrets={"START": CANARIES["start"]}, title=f"about {CANARIES['git']}"
    )
    session_key = (await client.conversation(conversation_id))["session_api_key"]
    secrets = [*CANARIES.values(), session_key]
    encoded = [f(f"{'x' * n}{one}y") for one in secrets for n in range(3) for f in ENCODINGS]
    patterns = [
        "ghp_aaaaaaaaaaaaaaaaaaaaaaaa",
        "DB_PASSWORD=hunter2hunter2",
        "https://me:passw0rd@git.example/x",
        "https://tools.example/sse?api_key=hunter2hunter2&x=1",
    ]
    for text in ("\n".join([*secrets, *encoded, *patterns]), json.dumps([secrets, encoded])):
        path = f"/api/v1/webhooks/events/{conversation_id}"
        sandbox = service.client_with(session_key)
        numbered = {"action": {"kind": "Other", "value": int(CANARIES["number"])}}
        events = [{**one, "id": f"{len(text)}-{one['id']}"} for one in work(text)]
        events[1] |= numbered
        assert (await sandbox.post(path, json=events)).status == 200
    reader = service.client_with(None)
    links = [
        await share(client, conversation_id, redact=one) for one in ([], ["tool_output", "paths"])
    ]
    read_all = [answer for link in links for answer in await read(reader, link)]
    assert len(read_all[0].json()["items"]) == 8
    page = f"/api/v1/app-conversations/{conversation_id}/page"
    exported = [await client.get(f"{page}{query}") for query in ("", "?redact=paths")]
    pieces = {
        *(piece for one in secrets for piece in one.split("\n")),
        *(piece for one in secrets for f in ENCODINGS for piece in _inner(f(one))),
        "ghp_a", "hunter2", "passw0rd",
    }  # fmt: skip
    for answer in (*read_all, *exported):
        assert answer.status == 200
        shown = html.unescape(answer.text)
        assert [piece for piece in pieces if piece.strip('"') in shown] == []


async def test_a_shared_fork_shows_no_secret_of_the_history_it_has_got(
    client: Client, service: Service
) -> None:
    await client.save_settings()
    canary = "fork canary value 77"
    conversation_id = await client.start_conversation(None, secrets={"DEPLOY": canary})
    key = (await client.conversation(conversation_id))["session_api_key"]
    told = await service.client_with(key).post(
        f"/api/v1/webhooks/events/{conversation_id}", json=[message(1, f"It is {canary}")]
    )
    assert told.status == 200, told.text
    for _ in range(2):
        path = f"/api/v1/app-conversations/{conversation_id}"
        fork = (await client.post(f"{path}/fork", json={})).json()
        ended = await client.end_of_start(fork["id"])
        assert ended["status"] == "READY", ended["detail"]
        # Its order goes with it.
        assert (await client.delete(path)).status == 200
        conversation_id = ended["app_conversation_id"]
    [shown, *_] = await read(service.client_with(None), await share(client, conversation_id))
    assert ("It is" in shown.text, canary in shown.text) == (True, False), shown.text


@pytest.mark.parametrize("value", ["kind", "MessageEvent"])
async def test_a_secret_that_is_called_like_a_part_of_events_breaks_no_page(
    client: Client, service: Service, value: str
) -> None:
    await client.save_settings()
    secret = {"name": "ODD", "value": value}
    assert (await client.post("/api/v1/secrets", json=secret)).status == 201
    conversation_id = await told(service, client, [message(1, f"about {value}")])
    link = await share(client, conversation_id, redact=["tool_output"])
    answers = await read(service.client_with(None), link)
    assert {answer.status for answer in answers} == {200}
    assert [one["kind"] for one in answers[0].json()["items"]] == ["MessageEvent"]
    # Neither the list of events nor the page ends before it.
    for answer in (answers[0], answers[-1]):
        assert ("about" in answer.text, f"about {value}" in answer.text) == (True, False)


async def test_a_number_that_is_none_breaks_no_page(client: Client, service: Service) -> None:
    await client.save_settings()
    conversation_id = await client.start_conversation(None)
    key = (await client.conversation(conversation_id))["session_api_key"]
    path = f"/api/v1/webhooks/events/{conversation_id}"
    body = json.dumps([message(1, "before") | {"cost": 7, "time": [-7]}]).replace("7", "1e999")
    said = {"Content-Type": "application/json"}
    sandbox = service.client_with(key)
    assert (await sandbox.post(path, data=body.encode(), headers=said)).status == 200
    [page, *_] = await read(service.client_with(None), await share(client, conversation_id))
    [shown] = page.json()["items"]
    assert (shown["cost"], shown["time"]) == (None, [None])


ENCODINGS: tuple[Callable[[str], str], ...] = (
    lambda text: base64.b64encode(text.encode()).decode(),
    lambda text: base64.encodebytes(text.encode()).decode(),
    lambda text: text.encode().hex(),
    json.dumps,
    lambda text: json.dumps(text).replace("&", "\\u0026").replace("<", "\\u003c"),
    lambda text: quote(text, safe="!*'()"),
    html.escape,
)


def _inner(encoded: str) -> list[str]:
    """Return the middle of each line of an encoded secret, which no masking of it may leave."""
    return [line[8:24] for line in encoded.splitlines() if len(line) >= 24]


@pytest.mark.parametrize(
    ("redact", "hidden", "shown"),
    [
        (["tool_output"], ["wrote"], ["I think the text", "please read /workspace"]),
        (["files"], ["wrote"], ["I think the text", PATH]),
        (["paths"], [PATH, "/workspace"], ["I think the text", "wrote [path]: the text"]),
        (["tool_output", "files", "paths"], ["/workspace", "wrote"], ["done the text"]),
    ],
)
async def test_a_link_redacts_what_its_owner_says(
    client: Client, service: Service, redact: list[str], hidden: list[str], shown: list[str]
) -> None:
    link = await share(client, await told(service, client, work("the text")), redact=redact)
    assert link["redact"] == redact
    answers = await read(service.client_with(None), link)
    page = answers[0]
    for answer in answers:
        assert [one for one in hidden if one in answer.text] == []
    assert [one for one in shown if one not in page.text] == []
    [action] = [one for one in page.json()["items"] if one["kind"] == "ActionEvent"]
    assert action["tool_call"]["arguments"] == "{}"
    has_file = "files" not in redact
    assert (action["action"]["file_text"] == "the text") is has_file


async def test_a_link_redacts_the_work_of_agents_of_other_makers(
    client: Client, service: Service
) -> None:
    call = event(
        1,
        "ACPToolCallEvent",
        title="Write a file",
        tool_call_id="c1",
        tool_kind="edit",
        status="completed",
        raw_input={"path": "a.txt", "content": "in the file"},
        raw_output={"id": "in the file", "told": ["in the file"]},
        content=[{"type": "diff", "path": "a.txt", "oldText": None, "newText": "in the file"}],
    )
    conversation_id = await told(service, client, [call])
    for redact, left in ((["files"], 0), (["tool_output"], 1), ([], 4)):
        link = await share(client, conversation_id, redact=redact)
        [shown] = (await service.client_with(None).get(search_path(link))).json()["items"]
        assert str(shown).count("in the file") == left
        assert (shown["title"], shown["raw_input"]["path"]) == ("Write a file", "a.txt")


async def test_a_link_ends_when_it_is_revoked_or_expires(client: Client, service: Service) -> None:
    conversation_id = await told(service, client, work("the text"))
    revoked = await share(client, conversation_id)
    kept = await share(client, conversation_id, expires_at="2100-01-01T00:00:00Z")
    answer = await client.get(f"/api/v1/shares?conversation_id={conversation_id}")
    assert answer.json() == [revoked, kept]
    stranger = await service.make_client("ann", Role.MEMBER)
    assert (await stranger.delete(f"/api/v1/shares/{revoked['id']}")).status == 404
    assert (await client.delete(f"/api/v1/shares/{revoked['id']}")).status == 200
    sql = "UPDATE plugin_sharing_links SET expires_at = '2020-01-01T00:00:00.000000Z'"
    reader = service.client_with(None)
    assert (await read(reader, kept))[1].json() != [None]
    await service.app[DATABASE].write(lambda tx: tx.run(sql))
    for link in (revoked, kept, {"id": "0" * 32}, {"id": "no-id"}, {"id": conversation_id}):
        page, shared, count, many, one, shown = await read(reader, link)
        assert page.json() == {"items": [], "next_page_id": None}
        assert (shared.json(), count.json(), many.json(), one.json()) == ([None], 0, [None], None)
        assert shown.status == 404


async def test_a_revoked_link_is_refused_on_a_connection_and_a_page_that_were_open(
    client: Client, service: Service
) -> None:
    link = await share(client, await told(service, client, work("the text")))
    opened: list[object] = []

    async def note(*seen: object) -> None:
        opened.append(seen)

    tracing = aiohttp.TraceConfig()
    tracing.on_connection_create_end.append(note)
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector, trace_configs=[tracing]) as session:

        async def page(page_id: str) -> dict[str, Any]:
            url = f"{service.url}{search_path(link, f'&limit=1&page_id={page_id}')}"
            async with session.get(url) as answer:
                found: dict[str, Any] = await answer.json()
                return found

        first = await page("")
        assert (len(first["items"]), first["next_page_id"] is None) == (1, False)
        revoked = asyncio.get_running_loop().time()
        assert (await client.delete(f"/api/v1/shares/{link['id']}")).status == 200
        assert await page(first["next_page_id"]) == {"items": [], "next_page_id": None}
        async with session.get(link["url"]) as answer:
            assert answer.status == 404
        assert asyncio.get_running_loop().time() - revoked < 1
    assert len(opened) == 1


async def test_a_page_that_is_read_slowly_ends_with_its_link(
    client: Client, service: Service
) -> None:
    conversation_id = await told(service, client, [])
    key = (await client.conversation(conversation_id))["session_api_key"]
    sandbox = service.client_with(key)
    for number in range(1, 17):
        events = [message(10 * number + n, "x" * 200_000) for n in range(5)]
        path = f"/api/v1/webhooks/events/{conversation_id}"
        assert (await sandbox.post(path, json=events)).status == 200
    link = await share(client, conversation_id)
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        url = URL(link["url"])
        await loop.sock_connect(reader, ("127.0.0.1", url.port))
        asked = f"GET {url.path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n"
        await loop.sock_sendall(reader, asked.encode())
        assert b" 200 OK" in await loop.sock_recv(reader, 4096)
        # What is under way fills the buffers of the system, which are a few MB at most.
        await asyncio.sleep(0.5)
        assert (await client.delete(f"/api/v1/shares/{link['id']}")).status == 200
        size, last = 0, b""
        while part := await loop.sock_recv(reader, 1 << 20):
            size, last = size + len(part), part
    assert size < 10_000_000
    assert not last.endswith(b"0\r\n\r\n")


async def test_only_the_owner_shares_and_only_what_is_there(
    client: Client, service: Service
) -> None:
    conversation_id = await told(service, client, [])
    stranger = await service.make_client("ann", Role.MEMBER)
    body = {"conversation_id": conversation_id}
    assert (await stranger.post("/api/v1/shares", json=body)).status == 404
    assert (await service.client_with(None).post("/api/v1/shares", json=body)).status == 401
    viewer = await service.make_client("vic", Role.VIEWER)
    assert (await viewer.post("/api/v1/shares", json=body)).status == 403
    for wrong in (
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "soon"},
        {"redact": ["x"]},
    ):
        assert (await client.post("/api/v1/shares", json={**body, **wrong})).status == 422
    page = f"/api/v1/app-conversations/{conversation_id}/page"
    assert (await client.get(page)).status == 200
    assert (await stranger.get(page)).status == 404


async def test_a_shared_page_is_html_that_needs_no_script(client: Client, service: Service) -> None:
    text = "<script>alert(1)</script> &amp;"
    events = [{**message(1, text), "big": 2**80}]
    conversation_id = await told(service, client, events)
    link = await share(client, conversation_id)
    shown = await service.client_with(None).get(f"/shared/conversations/{link['id']}?download=true")
    assert shown.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert shown.headers["Content-Disposition"].startswith("attachment")
    assert "<script" not in shown.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.text


async def test_readers_are_rate_limited_by_address(service: Service, client: Client) -> None:
    link = await share(client, await told(service, client, work("x")))
    tables = {"sharing": {"enabled": True, "requests_per_minute": 6, "longest_days": 1}}
    service.config = msgspec.structs.replace(service.config, extensions=tables)
    await service.restart()
    reader = service.client_with(None)
    several = "&".join(f"ids={link['id']}" for _ in range(3))
    answers = [await reader.get(f"/api/shared-conversations?{several}")]
    answers += [await reader.get(search_path(link)) for _ in range(4)]
    assert [one.status for one in answers] == [200, 200, 200, 200, 429]
    assert int(answers[4].headers["Retry-After"]) > 0
    bound = await share(client, link["conversation_id"])
    assert bound["expires_at"] < "2100"


async def test_the_flag_of_published_front_ends_shares_where_the_operator_says_so(
    service: Service, client: Client
) -> None:
    conversation_id = await told(service, client, work("the text"))
    path = f"/api/v1/app-conversations/{conversation_id}"
    assert (await client.patch(path, json={"public": True})).status == 200
    reader = service.client_with(None)
    asked = f"/api/shared-conversations?ids={conversation_id}"
    assert (await reader.get(asked)).json() == [None]
    tables = {"sharing": {"enabled": True, "public_flag": True}}
    service.config = msgspec.structs.replace(service.config, extensions=tables)
    await service.restart()
    [found] = (await reader.get(asked)).json()
    assert found["id"] == conversation_id
    assert (await client.patch(path, json={"public": False})).status == 200
    assert (await reader.get(asked)).json() == [None]


async def test_commands_make_list_and_revoke_links_and_write_a_file(
    client: Client, service: Service, tmp_path: Path
) -> None:
    conversation_id = await told(service, client, work("the text"))
    environment = {"AGENTSVC_URL": service.url, "AGENTSVC_API_KEY": client.key}

    async def called(*arguments: str) -> str:
        runner = CliRunner(env=environment)
        result = await asyncio.to_thread(runner.invoke, cli, ["share", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    url = (await called("add", conversation_id[:8], "--days", "2", "--redact", "files")).strip()
    link_id = url.rpartition("/")[2]
    assert (await service.client_with(None).get(f"/shared/conversations/{link_id}")).status == 200
    [listed] = json.loads(await called("list", "--json"))
    assert (listed["url"], listed["redact"]) == (url, ["files"])
    await called("revoke", url)
    assert link_id not in await called("list")
    file = tmp_path / "work.html"
    await called("export", conversation_id, "--output", str(file), "--redact", "tool_output")
    assert "I think the text" in file.read_text()
    assert "wrote /workspace" not in file.read_text()
