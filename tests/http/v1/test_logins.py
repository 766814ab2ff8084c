"""Logins of browsers: what begins and ends them, and what their cookie opens."""

import asyncio
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import aiohttp
import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.accounts.logins import MAX_LOGINS, TRIES_A_MINUTE
from agentsvc.base import values
from agentsvc.http.keys import DATABASE, LOGINS
from tests.http.gateway.steps import until
from tests.http.v1.streaming import feeder
from tests.service import Answer, Client, Service
from tests.streams import CHANGES, Lines, Stream, open_lines, open_socket, path_of

LOGINS_PATH = "/api/v1/logins"


class Browser:
    """Keeps cookies and says where its requests come from, as a page of the server has it."""

    def __init__(self, service: Service, anyone: Client) -> None:
        self.service = service
        self.anyone = anyone
        self.cookie = ""
        self.page_token = ""
        self.origin: str | None = service.url

    async def log_in(self, **body: Any) -> Answer:
        answer = await self.send("POST", LOGINS_PATH, json=body)
        if answer.status == 201:
            self.cookie = answer.headers["Set-Cookie"].partition(";")[0]
            self.page_token = answer.json()["page_token"]
        return answer

    def headers(self, **more: str) -> dict[str, str]:
        origin = {} if self.origin is None else {"Origin": self.origin}
        cookie = {"Cookie": self.cookie} if self.cookie else {}
        page = {"X-Agentsvc-Login": self.page_token} if self.page_token else {}
        return {**origin, **cookie, **page, **more}

    async def send(self, method: str, path: str, **options: Any) -> Answer:
        more = options.pop("headers", {})
        return await self.anyone.request(method, path, headers=self.headers(**more), **options)

    async def status(self, method: str = "GET", path: str = LOGINS_PATH, **more: str) -> int:
        return (await self.send(method, path, headers=more)).status


@pytest.fixture
async def browser(service: Service) -> Browser:
    return Browser(service, service.client_with(None))


@pytest.fixture
async def logged_in(browser: Browser, client: Client) -> Browser:
    assert (await browser.log_in(api_key=client.key)).status == 201
    return browser


async def configure(service: Service, **server: Any) -> None:
    section = msgspec.structs.replace(service.config.server, **server)
    service.config = msgspec.structs.replace(service.config, server=section)
    await service.restart()


async def test_a_key_logs_a_browser_in(browser: Browser, client: Client) -> None:
    answer = await browser.send(
        "POST", LOGINS_PATH, json={"api_key": client.key}, headers={"User-Agent": "Test 1"}
    )
    made = answer.json()
    assert (answer.status, made["client"], made["is_current"]) == (201, "Test 1", True)
    cookie = SimpleCookie(answer.headers["Set-Cookie"])[f"agentsvc-login-{port_of(browser)}"]
    assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == ("/", "Strict", True)
    assert (cookie["secure"], cookie["domain"], cookie["max-age"]) == ("", "", "604800")
    assert client.key
    assert client.key not in answer.text + str(answer.headers)
    browser.cookie = answer.headers["Set-Cookie"].partition(";")[0]
    browser.page_token = made.pop("page_token")
    assert browser.page_token not in browser.cookie
    [listed] = (await browser.send("GET", LOGINS_PATH)).json()
    assert listed == made


async def test_only_the_hash_of_a_token_is_stored(logged_in: Browser, service: Service) -> None:
    token = logged_in.cookie.partition("=")[2]
    link = await service.app[LOGINS].make_link(1)
    files = [file.read_bytes() for file in service.data_dir.glob("*.db*")]
    assert files
    for one in (token, logged_in.page_token, link.reveal()):
        assert all(one.encode() not in data for data in files)


async def test_nothing_else_logs_a_browser_in(browser: Browser) -> None:
    wanted: list[tuple[dict[str, Any], int]] = [
        ({"api_key": "asvc_wrong"}, 401),
        ({"api_key": "schlüssel"}, 401),
        ({"token": "wrong"}, 401),
        ({}, 422),
        ({"api_key": "a", "token": "b"}, 422),
        ({"api_key": ""}, 422),
        ({"api_key": "a" * 1001}, 422),
        ({"api_key": 7}, 422),
    ]
    for body, status in wanted:
        answer = await browser.log_in(**body)
        assert (answer.status, "Set-Cookie" in answer.headers) == (status, False), body


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://example.org", "__Host-agentsvc-login"),
        ("https://example.org/agents", "__Secure-agentsvc-login"),
        ("http://example.org/agents", "agentsvc-login"),
        ("http://example.org:3000", "agentsvc-login-3000"),
        ("https://example.org:8443", "__Host-agentsvc-login-8443"),
        ("http://[::1]:3000", "agentsvc-login-3000"),
    ],
)
async def test_a_cookie_is_as_narrow_as_where_the_server_is(
    browser: Browser, client: Client, service: Service, url: str, name: str
) -> None:
    await configure(service, public_url=url)
    browser.origin = url.removesuffix("/agents")
    answer = await browser.log_in(api_key=client.key)
    cookie = SimpleCookie(answer.headers["Set-Cookie"])
    assert list(cookie) == [name]
    assert cookie[name]["path"] == ("/agents/" if url.endswith("/agents") else "/")
    assert bool(cookie[name]["secure"]) == url.startswith("https")
    assert await browser.status() == 200
    # A cookie of another name is not one of this server's.
    browser.cookie = f"other-login={cookie[name].value}"
    assert await browser.status() == 401


SITES = [
    # What it says of the origin and the site, and whether it counts: to read, and to change.
    ({"Origin": "same"}, True, True),
    ({"Origin": "same", "Sec-Fetch-Site": "same-origin"}, True, True),
    ({"Sec-Fetch-Site": "same-origin"}, True, True),
    ({"Sec-Fetch-Site": "none"}, True, False),
    ({}, True, False),
    ({"Origin": "null"}, False, False),
    ({"Origin": ""}, False, False),
    ({"Origin": "http://127.0.0.1:1"}, False, False),
    ({"Origin": "http://localhost"}, False, False),
    ({"Origin": "http://[::1"}, False, False),
    ({"Origin": "https://evil.example"}, False, False),
    ({"Origin": "same", "Sec-Fetch-Site": "same-site"}, False, False),
    ({"Sec-Fetch-Site": "same-site"}, False, False),
    ({"Sec-Fetch-Site": "cross-site"}, False, False),
    ({"Sec-Fetch-Site": "whatever"}, False, False),
]


async def test_the_cookie_counts_for_pages_of_the_server_only(logged_in: Browser) -> None:
    logged_in.origin = None
    for says, reads, changes in SITES:
        more = said(logged_in, says)
        assert await logged_in.status(**more) == (200 if reads else 401), says
        made = await logged_in.send("POST", "/api/keys", headers=more, json={"name": "k"})
        assert made.status == (200 if changes else 401), says
        ended = await logged_in.status("DELETE", f"{LOGINS_PATH}/x", **more)
        assert ended == (404 if changes else 401), says


async def test_a_page_elsewhere_opens_no_stream_with_the_cookie(logged_in: Browser) -> None:
    url = logged_in.service.url + CHANGES
    logged_in.origin = None
    async with aiohttp.ClientSession() as session:
        for says, _, changes in SITES:
            headers = logged_in.headers(**said(logged_in, says))
            async with session.ws_connect(url, headers=headers) as socket:
                if not changes:
                    # It counts as a client without a key, which may say one.
                    await socket.send_str("{}")
                told = await socket.receive(timeout=30)
                assert (told.data == 4001) is not changes, says


def said(browser: Browser, says: dict[str, str]) -> dict[str, str]:
    return {name: browser.service.url if one == "same" else one for name, one in says.items()}


async def test_a_page_elsewhere_logs_nobody_in(browser: Browser, client: Client) -> None:
    browser.origin = "https://evil.example"
    answer = await browser.log_in(api_key=client.key)
    assert (answer.status, answer.json()["code"]) == (403, "not_allowed")
    browser.origin = None
    answer = await browser.send(
        "POST",
        LOGINS_PATH,
        json={"api_key": client.key},
        headers={"Sec-Fetch-Site": "cross-site"},
    )
    assert answer.status == 403


async def test_what_is_no_origin_is_not_that_of_a_server_under_no_name(
    browser: Browser, client: Client
) -> None:
    browser.origin = "null"
    body, host = {"api_key": client.key}, {"Host": "127.0.0.1:99999"}
    answer = await browser.send("POST", LOGINS_PATH, json=body, headers=host)
    assert answer.status == 403


async def test_a_key_in_a_header_needs_no_origin(client: Client) -> None:
    cookie = f"agentsvc-login-{client.base_url.rpartition(':')[2]}=x"
    headers = {"Origin": "https://elsewhere.example", "Cookie": cookie, "X-Agentsvc-Login": "x"}
    assert (await client.post("/api/keys", json={}, headers=headers)).status == 200


async def test_a_login_opens_pages_and_what_admins_may(logged_in: Browser) -> None:
    assert await logged_in.status(path="/openapi.json") == 200
    assert await logged_in.status(path="/api/v1/users/me") == 200
    answer = await logged_in.send("DELETE", "/api/v1/logins/current")
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert await logged_in.status(path="/openapi.json") == 401


async def test_every_tab_logs_the_browser_out(logged_in: Browser) -> None:
    path = f"{LOGINS_PATH}/current"
    answers = await asyncio.gather(*(logged_in.send("DELETE", path) for _ in range(3)))
    statuses = [answer.status for answer in answers]
    # One that comes late is told that there is no login any more.
    assert 200 in statuses
    assert set(statuses) <= {200, 401}


async def test_a_login_ends_what_it_is_told_to(
    logged_in: Browser, client: Client, service: Service
) -> None:
    other = Browser(service, service.client_with(None))
    await other.log_in(api_key=client.key)
    mine, others = (await client.get(LOGINS_PATH)).json()
    assert [one["is_current"] for one in (mine, others)] == [False, False]
    assert await logged_in.status("DELETE", f"{LOGINS_PATH}/{others['id']}") == 200
    assert await other.status() == 401
    assert await logged_in.status("DELETE", f"{LOGINS_PATH}/{others['id']}") == 404
    bob = await service.make_client("bob", Role.MEMBER)
    assert (await bob.delete(f"{LOGINS_PATH}/{mine['id']}")).status == 404
    assert (await bob.get(LOGINS_PATH)).json() == []
    assert (await client.delete(f"{LOGINS_PATH}/current")).status == 200
    assert await logged_in.status() == 200


async def test_a_login_ends_with_time(browser: Browser, client: Client, service: Service) -> None:
    await configure(service, login_seconds=0.001)
    await browser.log_in(api_key=client.key)

    async def is_over() -> bool:
        return await browser.status() == 401

    await until(is_over)
    assert (await client.get(LOGINS_PATH)).json() == []


async def test_a_revoked_key_ends_its_logins(
    browser: Browser, client: Client, service: Service
) -> None:
    made = (await client.post("/api/keys", json={"name": "short"})).json()
    await browser.log_in(api_key=made["key"])
    link = await service.app[LOGINS].make_link(made["id"])
    assert await browser.status() == 200
    await client.delete(f"/api/keys/{made['id']}")
    assert await browser.status() == 401
    assert (await client.get(LOGINS_PATH)).json() == []
    assert (await browser.log_in(token=link.reveal())).status == 401


@pytest.fixture
async def lively(service: Service) -> None:
    quick = msgspec.structs.replace(service.config.events, heartbeat_seconds=0.1)
    service.config = msgspec.structs.replace(service.config, events=quick)
    await service.restart()


@pytest.mark.parametrize("opener", [open_lines, open_socket])
@pytest.mark.parametrize("is_key", [True, False])
@pytest.mark.usefixtures("lively")
async def test_the_end_of_a_login_ends_its_streams(
    browser: Browser, client: Client, service: Service, opener: Any, *, is_key: bool
) -> None:
    feed = await feeder(client, service)
    key = (await client.post("/api/keys", json={"name": "short"})).json()
    made = (await browser.log_in(api_key=key["key"])).json()
    path = f"/api/keys/{key['id']}" if is_key else f"{LOGINS_PATH}/{made['id']}"
    browser.anyone.headers = browser.headers()
    async with opener(browser.anyone, path_of(feed.conversation_id)) as stream:
        assert await stream.until("ready")
        assert (await client.delete(path)).status == 200
        await _assert_ended(stream)


async def _assert_ended(stream: Stream) -> None:
    rest = await stream.rest()
    if isinstance(stream, Lines):
        assert rest[-1].data == {"reason": "not_authenticated"}
    else:
        assert getattr(stream, "end", None) == (4001, "not_authenticated")


async def test_a_link_logs_in_once(browser: Browser, client: Client, service: Service) -> None:
    [key] = (await client.get("/api/keys")).json()
    link = await service.app[LOGINS].make_link(key["id"])
    answers = await asyncio.gather(*(browser.log_in(token=link.reveal()) for _ in range(3)))
    assert sorted(one.status for one in answers) == [201, 401, 401]
    assert await browser.status() == 200


async def test_a_link_that_is_too_old_logs_nobody_in(browser: Browser, service: Service) -> None:
    await service.make_client()
    link = await service.app[LOGINS].make_link(1)
    age = "UPDATE login_links SET expires_at = :now"
    now = {"now": values.to_stored(values.now())}
    await service.app[DATABASE].write(lambda tx: tx.run(age, now))
    assert (await browser.log_in(token=link.reveal())).status == 401
    # A new link has the old one forgotten.
    await service.app[LOGINS].make_link(1)
    assert len(await service.app[DATABASE].all("SELECT hash FROM login_links")) == 1


async def test_a_link_says_whom_it_logs_in_and_stays_good(
    browser: Browser, client: Client, service: Service
) -> None:
    await service.make_client("mallory", Role.MEMBER)
    link = (await service.app[LOGINS].make_link(2)).reveal()
    order = {"json": {"token": link}}
    for _ in range(2):
        whose = await browser.send("POST", f"{LOGINS_PATH}/link", **order)
        assert (whose.status, whose.json()) == (200, {"user_name": "mallory"})
    assert (await browser.log_in(token=link)).status == 201
    assert (await browser.send("POST", f"{LOGINS_PATH}/link", **order)).status == 401
    assert (await browser.send("POST", f"{LOGINS_PATH}/link", json={})).status == 422


async def test_the_page_on_which_one_logs_in_is_the_console(browser: Browser) -> None:
    page = await browser.send("GET", '/login?token="><script>alert(1)</script>')
    assert (page.status, page.body) == (200, (await browser.send("GET", "/")).body)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert (await browser.send("POST", "/login", data={"api_key": "x"})).status == 405


async def test_one_part_of_a_login_opens_nothing_without_the_other(
    logged_in: Browser, client: Client, service: Service
) -> None:
    """What a port of the same host is sent, or sets, is worth nothing by any transport."""
    cookie, page_token = logged_in.cookie, logged_in.page_token
    mallory = Browser(service, service.client_with(None))
    await mallory.log_in(api_key=(await service.make_client("mallory", Role.MEMBER)).key)
    own = {"Sec-Fetch-Site": "same-origin"}
    for stolen, shown in (
        (cookie, ""),
        ("", page_token),
        (cookie, cookie.partition("=")[2]),
        (cookie, mallory.page_token),
        (mallory.cookie, page_token),
        (cookie, f"{page_token}."),
        (f"{cookie}.{page_token}", ""),
        (f"{cookie}; {mallory.cookie}", page_token),
    ):
        logged_in.cookie, logged_in.page_token = stolen, shown
        for method, path in CREDENTIALS:
            body = {} if method == "GET" else {"json": {"name": "x"}}
            assert (await logged_in.send(method, path, headers=own, **body)).status == 401, path
        assert await logged_in.status(path=CHANGES, Accept="text/event-stream") == 401
    logged_in.cookie, logged_in.page_token = cookie, page_token
    assert await logged_in.status() == 200
    assert len((await client.get("/api/keys")).json()) == 1


CREDENTIALS = [
    ("GET", "/api/keys/current"),
    ("POST", "/api/keys"),
    ("POST", "/api/v1/users"),
    ("GET", LOGINS_PATH),
    ("DELETE", f"{LOGINS_PATH}/current"),
    ("POST", "/oauth/device/verify-authenticated"),
    ("POST", "/api/v1/webhook-subscriptions"),
    ("GET", "/openapi.json"),
]


@pytest.mark.parametrize(
    ("first", "is_let_in"),
    [("", False), ("{cookie}", False), ("{page}x", False), ("{page}", True), ("{key}", True)],
)
async def test_a_websocket_needs_the_pages_part_first(
    logged_in: Browser, client: Client, first: str, *, is_let_in: bool
) -> None:
    shown = first.format(
        cookie=logged_in.cookie.partition("=")[2], page=logged_in.page_token, key=client.key
    )
    headers = {"Cookie": logged_in.cookie, "Origin": logged_in.service.url}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(logged_in.service.url + CHANGES) as socket,
    ):
        await socket.send_json({"type": "auth", "session_api_key": shown})
        told = await socket.receive(timeout=30)
        assert (told.data != 4001) is is_let_in


async def test_one_address_tries_so_often_only(browser: Browser) -> None:
    order = {"json": {"token": "no-such-link"}}
    tries = (browser.send("POST", LOGINS_PATH, **order) for _ in range(3 * TRIES_A_MINUTE))
    statuses = [one.status for one in await asyncio.gather(*tries)]
    assert TRIES_A_MINUTE <= len([one for one in statuses if one != 429]) < len(statuses)


async def test_a_key_has_so_many_logins_only(service: Service) -> None:
    client = await service.make_client()
    logins = service.app[LOGINS]
    assert client.key
    made = [await logins.begin(client.key, client="x") for _ in range(MAX_LOGINS + 2)]
    left = (await client.get(LOGINS_PATH)).json()
    assert [one["id"] for one in left] == [login.id for login, _ in made[2:]]


async def test_a_use_is_noted_once_a_minute(logged_in: Browser, service: Service) -> None:
    async def last_use() -> str:
        row = await service.app[DATABASE].one("SELECT last_used_at FROM logins")
        assert row is not None
        return str(row["last_used_at"])

    first = await last_use()
    assert await logged_in.status() == 200
    assert await last_use() == first
    earlier = {"then": values.to_stored(values.now() - timedelta(minutes=2))}
    sql = "UPDATE logins SET last_used_at = :then"
    await service.app[DATABASE].write(lambda tx: tx.run(sql, earlier))
    assert await logged_in.status() == 200
    assert await last_use() > first


async def test_a_login_is_not_a_key(logged_in: Browser, service: Service) -> None:
    name, _, token = logged_in.cookie.partition("=")
    for key in (token, logged_in.page_token, f"{token}.{logged_in.page_token}"):
        assert (await service.client_with(key).get(LOGINS_PATH)).status == 401
    logged_in.cookie = f"{name}={(await service.make_client('eve')).key}"
    assert await logged_in.status() == 401
    logged_in.cookie = f"{name}=schl\u00fcssel"
    assert await logged_in.status() == 401


def port_of(browser: Browser) -> str:
    return browser.service.url.rpartition(":")[2]
