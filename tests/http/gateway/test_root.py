"""What clients ask for at the root goes to the sandbox whose key they show, and to no other."""

import pytest

from agentsvc.http.gateway import rewriting as rewrite
from tests.http.gateway.steps import Box, send_raw, session

KEY = "X-Session-API-Key"
PATHS = [
    "/api/conversations/8a0ef4b2/events/search?limit=5",
    "/api/conversations/8a0ef4b2",
    "/api/conversations",
    "/api/file/download?path=/x",
    "/api/git/changes?path=/x",
    "/api/bash/bash_events/search",
    "/api/vscode/status",
    "/api/settings",
    "/sockets/whatever",
    "/server_info",
    "/health",
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_session_key_leads_to_its_sandbox(path: str, box: Box) -> None:
    other = await Box.start(box.service, box.upstream, box.owner)
    for each in (box, other):
        answer = await box.service.client_with(each.key).get(path)
        assert (answer.status, answer.json()) == (200, {"ok": True})
        seen = box.upstream.seen[-1]
        assert (seen.raw_path, seen.one(KEY)) == (path, each.key)
        assert seen.one("X-Forwarded-Prefix") is None
        assert "Deprecation" not in answer.headers


async def test_a_session_key_in_the_query_leads_to_its_sandbox(box: Box) -> None:
    nobody = box.service.client_with(None)
    answer = await nobody.get(f"/api/file/download?path=/x&session_api_key={box.key}")
    assert answer.status == 200
    assert box.upstream.seen[-1].raw_path == "/api/file/download?path=/x"


async def test_a_socket_at_the_root_leads_to_its_sandbox(box: Box) -> None:
    url = f"{box.service.url}/sockets/events/1?resend_all=true&session_api_key={box.key}"
    async with session() as client, client.ws_connect(url) as socket:
        assert (await socket.receive(timeout=30)).data == "hello"
    assert box.upstream.seen[-1].raw_path == "/sockets/events/1?resend_all=true"


async def test_a_users_key_leads_to_the_server(box: Box) -> None:
    answer = await box.owner.get("/api/conversations")
    assert "results" in answer.json()
    assert (await box.owner.get("/api/git/changes?path=/x")).status == 404
    assert (await box.owner.get("/sockets/events/1")).status == 404
    nobody = box.service.client_with(None)
    assert (await nobody.get("/api/conversations")).status == 401
    assert (await nobody.get("/api/file/download")).status == 404
    assert box.upstream.seen == []


@pytest.mark.parametrize(
    "path", ["/api/v1/app-conversations", "/api/v1/sandboxes/search", "/docs", "/openapi.json"]
)
async def test_the_servers_own_paths_stay_the_servers(path: str, box: Box) -> None:
    await box.service.client_with(box.key).get(path)
    assert box.upstream.seen == []


async def test_a_paused_sandbox_is_a_conflict_at_the_root_too(box: Box) -> None:
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    answer = await box.service.client_with(box.key).get("/api/git/changes?path=/x")
    assert answer.status == 409


async def test_a_cookie_set_at_the_root_is_confined_all_the_same(box: Box) -> None:
    box.upstream.answer_headers = [("Set-Cookie", "a=1; Path=/"), ("Location", "/api/other")]
    async with session(box.key) as client, client.get(f"{box.service.url}/api/git/x") as response:
        assert response.headers["Set-Cookie"] == f"a=1; Path={box.path('/', 'agent')}"
        assert response.headers["Location"] == "/api/other"


@pytest.mark.parametrize("at_root", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/api/git/changes/%2Fsrv%2Fa%20b", "/api/git/changes?path=/srv/a%20b"),
        ("/api/git/changes//srv/a?ref=HEAD", "/api/git/changes?ref=HEAD&path=/srv/a"),
        ("/api/git/diff/srv/a.txt", "/api/git/diff?path=/srv/a.txt"),
        ("/api/file/upload/%2Fsrv%2Fa%26b", "/api/file/upload?path=/srv/a%26b"),
        ("/api/file/download/srv/%C3%A9", "/api/file/download?path=/srv/%C3%A9"),
        ("/api/git/diff/srv/a?path=/other", "/api/git/diff?path=/srv/a"),
        ("/api/file/download-trajectory/1", "/api/file/download-trajectory/1"),
        ("/api/git/changes?path=/work", "/api/git/changes?path=/work"),
        ("/api/git/commits/x", "/api/git/commits/x"),
    ],
)
async def test_forms_that_agent_servers_dropped_still_work(
    old: str, new: str, at_root: bool, box: Box
) -> None:
    path = old if at_root else box.path(old, "agent")
    assert await send_raw(box.service, "POST", path, f"{KEY}: {box.key}") == 200
    assert box.upstream.seen[-1].raw_path == new


async def test_a_path_on_another_port_is_the_applications_own(box: Box) -> None:
    assert (await box.ask("GET", "/api/git/changes/work")).raw_path == "/api/git/changes/work"


async def test_the_agent_server_is_told_where_the_editor_is(box: Box) -> None:
    base = f"http://vscode-{box.id}.localhost:{box.service.url.rpartition(':')[2]}"
    for path in ("/api/vscode/url", "/api/vscode/url?base_url=http://localhost:8001"):
        seen = await box.ask("GET", path, "agent")
        assert seen.raw_path == f"/api/vscode/url?base_url={base.replace(':', '%3A')}"


def test_a_query_is_left_as_it_was_written() -> None:
    query = "a=%20+x&session%5Fapi_key=1&b&&session_api_key=2&c=="
    assert rewrite.find_parameters(query, "session_api_key") == ("1", "2")
    rest = rewrite.drop_parameters(query, lambda name, _: name == "session_api_key")
    assert rest == "a=%20+x&b&&c=="
    assert rewrite.set_parameter("", "path", "/a b") == "path=/a%20b"
