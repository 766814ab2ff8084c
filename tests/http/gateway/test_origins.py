"""A work port at an origin of its own: who gets there, and that nothing else is there."""

from collections.abc import Mapping

import aiohttp
import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from agentsvc.http.gateway.port_cookies import port_token
from agentsvc.http.port_origins import label_of, read_label
from agentsvc.http.urls import WorkOrigin
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import LONG_SECONDS, Box, Wire, head, session
from tests.http.gateway.upstream import Upstream
from tests.service import Answer

KEY = "X-Session-API-Key"
DOMAIN = "sandboxes.example.org"
COOKIE = "agentsvc-sandbox"
CONFIG = GatewayConfig(start_seconds=10, sandbox_domain=f"*.{DOMAIN}")
SERVER_PATHS = (
    "/api/v1/users/me",
    "/api/conversations",
    "/api/settings",
    "/openapi.json",
    "/docs",
    "/ready",
    "/sockets/events/1",
)


@pytest.fixture
async def box(start_gate: StartGate, upstream: Upstream) -> Box:
    gate = await start_gate(CONFIG)
    return await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))


def _host(box: Box, domain: str = DOMAIN) -> str:
    return f"worker-1-{box.id}.{domain}"


async def _ask(
    box: Box,
    tail: str = "/x",
    headers: Mapping[str, str] | None = None,
    *,
    host: str = "",
    method: str = "GET",
) -> Answer:
    """Ask at the origin without a key but those in the headers or the tail."""
    nobody = box.service.client_with(None)
    sent = {"Host": host or _host(box), **(headers or {})}
    return await nobody.request(method, tail, headers=sent, allow_redirects=False)


def _token(box: Box, scheme: str = "http", host: str = "") -> str:
    host = host or _host(box)
    origin = WorkOrigin(scheme=scheme, host=host, label=host.partition(".")[0])
    return port_token(origin, box.key)


def _own(box: Box, host: str = "") -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={_token(box, host=host)}"}


@pytest.mark.parametrize("where", [KEY, "Authorization", "X-Access-Token"])
@pytest.mark.parametrize("whose", ["owner", "sandbox"])
async def test_either_key_opens_the_port_and_does_not_get_there(
    whose: str, where: str, box: Box
) -> None:
    key = str(box.owner.key) if whose == "owner" else box.key
    headers = {where: f"Bearer {key}" if where == "Authorization" else key}
    answer = await _ask(box, "/a%2Fb//c?d=%20+e&f", headers)
    assert (answer.status, answer.json()) == (200, {"ok": True})
    assert "Set-Cookie" not in answer.headers
    seen = box.upstream.seen[-1]
    assert seen.raw_path == "/a%2Fb//c?d=%20+e&f"
    assert (seen.one("X-Forwarded-Host"), seen.one("X-Forwarded-Prefix")) == (_host(box), None)
    assert not any(key in value for _, value in seen.headers)


async def test_paths_of_the_server_are_the_applications_there(box: Box) -> None:
    for path in SERVER_PATHS:
        answer = await _ask(box, path)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="agentsvc"'
        assert "Deprecation" not in answer.headers
    assert box.upstream.seen == []
    for path in SERVER_PATHS:
        for key in (str(box.owner.key), box.key):
            answer = await _ask(box, path, {KEY: key})
            assert "Deprecation" not in answer.headers
            assert box.upstream.seen[-1].raw_path == path
    assert len(box.upstream.seen) == 2 * len(SERVER_PATHS)


@pytest.mark.parametrize(
    "label",
    [
        "unknown",
        "api",
        "worker_1-{id}",
        "worker-2-{id}",
        "worker-1-{id}.deeper",
        "deeper.worker-1-{id}",
        "agent-{id}",
        "worker-1-{zeros}",
        "-{id}",
        "{id}",
    ],
)
async def test_nothing_else_is_at_such_a_name(label: str, box: Box) -> None:
    names = {"id": box.id, "zeros": "0" * 32}
    for domain in (DOMAIN, "localhost"):
        host = f"{label.format(**names)}.{domain}"
        for path in ("/", "/api/settings", "/docs", "/ready", box.path("/x")):
            answer = await _ask(box, path, {KEY: str(box.owner.key)}, host=host)
            assert (answer.status, answer.json()["code"]) == (404, "not_found"), path
            assert "Deprecation" not in answer.headers
    assert box.upstream.seen == []


async def test_a_name_is_the_same_however_it_is_written(box: Box) -> None:
    for domain in (DOMAIN, "localhost"):
        name = _host(box, domain)
        for host in (name.upper(), f"{name}.", f"{name}:8443", f"{name}.:1", name.title()):
            answer = await _ask(box, "/api/settings", {KEY: box.key}, host=host)
            assert (answer.status, answer.json()) == (200, {"ok": True}), host


async def test_other_names_are_the_servers(box: Box) -> None:
    for host in (DOMAIN, f"x{DOMAIN}", f"{_host(box)}.evil.test", "localhost", "localhost:3000"):
        answer = await _ask(box, "/api/v1/sandboxes/search", {KEY: str(box.owner.key)}, host=host)
        assert (answer.status, list(answer.json())) == (200, ["items", "next_page_id"]), host
    assert box.upstream.seen == []


async def test_a_page_cannot_say_that_it_is_elsewhere(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(CONFIG, trusted_proxies=("127.0.0.1",))
    box = await Box.start(gate, upstream, await gate.make_client())
    said = {KEY: box.key, "X-Forwarded-Host": "agents.example.org", "X-Forwarded-Prefix": "/api"}
    assert (await _ask(box, "/api/v1/sandboxes/search", said)).json() == {"ok": True}
    said = {KEY: box.key, "X-Forwarded-Host": _host(box)}
    assert (await _ask(box, "/api/settings", said, host="127.0.0.1")).json() == {"ok": True}


async def test_a_foreign_sandbox_is_not_there(box: Box) -> None:
    stranger = await box.service.make_client("stranger", Role.MEMBER)
    admin = await box.service.make_client("boss", Role.ADMIN)
    other = await Box.start(box.service, box.upstream, stranger)
    for key in (str(stranger.key), str(admin.key), other.key):
        answer = await _ask(box, "/x", {KEY: key})
        assert (answer.status, answer.json()["code"]) == (404, "not_found")
    assert (await _ask(box, "/x", _own(other))).status == 401
    assert (await _ask(box, f"/x?session_api_key={other.key}")).status == 404
    assert box.upstream.seen == []


async def test_a_bad_key_opens_nothing(box: Box) -> None:
    owner_key = str(box.owner.key)
    for headers in ({}, {KEY: "wrong"}, {"Cookie": f"{COOKIE}=wrong"}, {"Cookie": "a=b"}):
        assert (await _ask(box, "/x", headers)).status == 401
    for wrong in (owner_key, box.key, _token(box, "https"), _token(box, host=f"{_host(box)}:99")):
        assert (await _ask(box, "/x", {"Cookie": f"{COOKIE}={wrong}"})).status == 401
    assert (await _ask(box, f"/x?session_api_key={owner_key}")).status == 401
    assert box.upstream.seen == []


async def test_a_paused_sandbox_is_a_conflict(box: Box) -> None:
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    assert (await _ask(box, "/x", {KEY: box.key})).status == 409
    assert (await _ask(box, "/x", _own(box))).status == 409


async def test_a_page_opened_with_the_key_opens_the_rest_with_a_cookie(box: Box) -> None:
    box.upstream.answer_headers = [("Set-Cookie", "theirs=1; Path=/; Domain=example.org")]
    page = await _ask(box, f"/?a=1&session_api_key={box.key}")
    assert (page.status, box.upstream.seen[-1].raw_path) == (200, "/?a=1")
    url = f"{box.service.url}/?session_api_key={box.key}"
    async with session() as client, client.get(url, headers={"Host": _host(box)}) as response:
        cookies = response.headers.getall("Set-Cookie")
    own = f"{COOKIE}={_token(box)}; Path=/; HttpOnly; SameSite=Strict"
    assert cookies == ["theirs=1; Path=/", own]

    next_one = await _ask(box, "/script.js", {"Cookie": f"theirs=1; {COOKIE}={_token(box)}; b=2"})
    assert (next_one.status, box.upstream.seen[-1].one("Cookie")) == (200, "theirs=1; b=2")
    assert next_one.headers["Set-Cookie"] == "theirs=1; Path=/"


async def test_the_cookie_is_bound_to_the_host_over_tls(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(CONFIG, public_url="https://example.org/agents")
    box = await Box.start(gate, upstream, await gate.make_client())
    page = await _ask(box, f"/agents/x?session_api_key={box.key}")
    name = f"__Host-{COOKIE}"
    token = _token(box, "https")
    expected = f"{name}={token}; Path=/; HttpOnly; SameSite=Strict; Secure"
    assert page.headers["Set-Cookie"] == expected
    # The path of the server is nothing special at an origin that is not the server's.
    assert upstream.seen[-1].raw_path == "/agents/x"
    assert upstream.seen[-1].one("X-Forwarded-Proto") == "https"
    assert (await _ask(box, "/x", _own(box))).status == 401
    # Names below localhost are not what the configured URL is about.
    local = _host(box, "localhost")
    assert (await _ask(box, "/x", _own(box, local), host=local)).status == 200
    assert (await _ask(box, "/x", {"Cookie": f"{name}={token}"})).status == 200
    assert upstream.seen[-1].one("Cookie") is None


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "http://{host}:99"}, 401),
        ({"Origin": "http://worker-2-{id}." + DOMAIN}, 401),
        ({"Origin": "null"}, 401),
        ({"Origin": ""}, 401),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-site"}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
    ],
)
async def test_the_cookie_opens_nothing_for_another_origin(
    said: dict[str, str], status: int, box: Box
) -> None:
    headers = {name: text.format(host=_host(box), id=box.id) for name, text in said.items()}
    assert (await _ask(box, "/x", {**_own(box), **headers}, method="POST")).status == status
    assert len(box.upstream.seen) == (status == 200)
    # With a key of its own a request needs no cookie.
    assert (await _ask(box, "/x", {KEY: box.key, **headers}, method="POST")).status == 200


async def test_a_stolen_cookie_opens_nothing_else(box: Box) -> None:
    """A port of the same host is sent it; it is no key, and good for this one origin."""
    token = _token(box)
    for headers in ({KEY: token}, {"Authorization": f"Bearer {token}"}):
        assert (await _ask(box, "/x", headers)).status == 401
        for path in (box.path("/x"), box.path("/x", "worker_1"), "/api/git/changes"):
            answer = await _ask(box, path, headers, host="127.0.0.1")
            assert answer.status in (401, 404), path
    assert (await _ask(box, f"/x?session_api_key={token}")).status == 401
    editor = f"vscode-{box.id}.{DOMAIN}"
    for cookie in (f"{COOKIE}={token}", f"vscode-tkn={token}"):
        assert (await _ask(box, "/x", {"Cookie": cookie}, host=editor)).status == 401
    assert box.upstream.seen == []


async def test_the_cookie_is_of_no_use_at_the_server(box: Box) -> None:
    for path in (box.path("/x"), "/api/v1/users/me"):
        assert (await _ask(box, path, _own(box), host="127.0.0.1")).status == 401
    assert (await _ask(box, "/api/git/changes", _own(box), host="127.0.0.1")).status == 404
    assert box.upstream.seen == []


async def test_what_an_application_answers_has_its_effect_at_its_origin(box: Box) -> None:
    box.upstream.answer_headers = [
        ("Location", f"{box.upstream.url}/next?a"),
        ("Service-Worker-Allowed", "/"),
        ("Set-Cookie", f"__Host-{COOKIE}=forged; Path=/; Secure"),
        ("Set-Cookie", f"{COOKIE}=forged; Path=/"),
        ("Set-Cookie", "__Host-app=1; Path=/; Secure"),
    ]
    answer = await _ask(box, "/x", {KEY: box.key})
    assert (answer.headers["Location"], answer.headers["Service-Worker-Allowed"]) == (
        "/next?a",
        "/",
    )
    assert answer.headers["Set-Cookie"] == "__Host-app=1; Secure; Path=/"


async def test_a_socket_opens_with_the_cookie_for_its_own_origin_only(box: Box) -> None:
    url, host = f"{box.service.url}/ws", _host(box)
    headers = {"Host": host, "Origin": f"http://{host}", **_own(box)}
    async with session() as client, client.ws_connect(url, headers=headers) as socket:
        assert (await socket.receive(timeout=LONG_SECONDS)).data == "hello"
        await socket.send_str("text")
        assert (await socket.receive(timeout=LONG_SECONDS)).data == "TEXT"
    assert box.upstream.seen[-1].one("Cookie") is None
    async with session() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect(url, headers={**headers, "Origin": "http://evil.test"})
    assert caught.value.status == 401


@pytest.mark.parametrize("target", ["*", "http://127.0.0.1/api/settings"])
async def test_a_target_that_is_no_path_is_not_there(target: str, box: Box) -> None:
    wire = await Wire.open(box.service)
    lines = (f"{KEY}: {box.owner.key}", "Connection: close")
    wire.send(head("OPTIONS", target, *lines, host=_host(box)))
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 404
    assert box.upstream.seen == []


async def test_urls_of_work_ports_name_their_origins(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(CONFIG, trusted_proxies=("127.0.0.1",))
    box = await Box.start(gate, upstream, await gate.make_client())
    for host, number in (("agents.example.org:8443", ":8443"), ("agents.example.org", "")):
        said = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": host}
        answer = await box.owner.get(f"/api/v1/sandboxes?id={box.id}", headers=said)
        urls = {one["name"]: one["url"] for one in answer.json()[0]["exposed_urls"]}
        assert urls["WORKER_1"] == f"https://{_host(box)}{number}"
        assert urls["AGENT_SERVER"] == f"https://{host}"
        assert urls["VSCODE"].startswith(f"https://vscode-{box.id}.{DOMAIN}{number}/?tkn=")


async def test_names_below_localhost_need_no_set_up(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(msgspec.structs.replace(CONFIG, sandbox_domain=""))
    box = await Box.start(gate, upstream, await gate.make_client())
    number = gate.url.rpartition(":")[2]
    host = f"{_host(box, 'localhost')}:{number}"
    assert (await _ask(box, "/x", {KEY: box.key}, host=host)).json() == {"ok": True}
    # Any other domain is none of ours, then.
    assert (await _ask(box, "/x", {KEY: box.key})).json()["code"] == "not_found"
    assert len(upstream.seen) == 1


async def test_the_host_of_the_public_url_is_always_the_servers(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(CONFIG, public_url=f"http://agents.{DOMAIN}:3000")
    box = await Box.start(gate, upstream, await gate.make_client())
    answer = await box.owner.get("/api/v1/sandboxes/search", headers={"Host": f"agents.{DOMAIN}"})
    assert answer.status == 200
    worker = next(one for one in answer.json()["items"][0]["exposed_urls"] if "WORK" in one["name"])
    assert worker["url"] == f"http://{_host(box)}:3000"


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ("worker_1", "worker-1"),
        ("a", "a"),
        ("a" * 30, "a" * 30),
        ("a" * 31, None),
        ("xn__app", None),
        ("a_", "a-"),
        ("agent", None),
        ("vscode", "vscode"),
    ],
)
def test_a_port_that_fits_has_a_label(port: str, expected: str | None) -> None:
    sandbox_id = "0123456789abcdef" * 2
    label = label_of(sandbox_id, port)
    assert label == (f"{expected}-{sandbox_id}" if expected else None)
    if label is not None:
        assert read_label(label) == (sandbox_id, port)
