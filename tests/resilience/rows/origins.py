"""A web page elsewhere cannot drive the server, whatever name it is reached by.

Pages that a browser of somebody who is logged in has open: under another Host, as after DNS
rebinding, and from another Origin. Another port of the server's own host, which is sent the cookie and
replays it with whatever headers it likes. Over HTTP, WebSockets, the event socket and the gateway.
"""

from typing import Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.rows.port_cookies import try_ports
from tests.resilience.server import Server, serving
from tests.service import login_headers

_OWN: Final = "{own}"
HOSTS: Final = (
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "rebind.evil.example.",
    "evil",
    "EVIL.EXAMPLE",
    "xn--lclhst-abc.example",
    "127.0.0.1@evil.example",
    _OWN,
)
ORIGINS: Final = (
    "http://evil.example",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "null",
    "http://127.0.0.1:1",
    "http://localhost:1",
    "file://",
    "chrome-extension://abcdef",
    "http://{own}.evil.example",
)


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """What a page makes a browser send, or what somebody sends who has its cookie only."""

    host: str
    origin: str
    is_thief: bool = False

    def headers(self, login: dict[str, str]) -> dict[str, str]:
        sent = {"Host": self.host, "Origin": self.origin, **login}
        if not self.is_thief:
            return sent
        sent.pop("X-Agentsvc-Login")
        return {**sent, "Sec-Fetch-Site": "same-origin"}


class Browser:
    """A browser that is logged in, with pages of others open."""

    def __init__(self, server: Server, login: dict[str, str], sandbox_id: str, name: str) -> None:
        self._server = server
        self._login = login
        self._gateway = f"/sandboxes/{sandbox_id}/agent"
        self._conversation = name
        self.tried = 0
        self.let_in: list[str] = []

    async def try_all(self, visit: Visit) -> None:
        for name, work in (
            ("HTTP", self._http),
            ("WebSocket", self._socket),
            ("Socket.IO", self._socketio),
            ("gateway", self._through),
        ):
            self.tried += 1
            if found := await work(visit):
                self.let_in.append(f"{name}, Host {visit.host}, Origin {visit.origin}: {found}")

    async def _http(self, visit: Visit) -> str:
        """Read, change, and ask whether a page may; the answer must neither help nor be readable."""
        for method, path in (
            ("GET", "/api/settings"),
            ("POST", "/api/settings"),
            ("POST", "/api/keys"),
            ("DELETE", "/api/v1/logins/current"),
            ("OPTIONS", "/api/settings"),
            ("GET", "/api/v1/web-client/config"),
        ):
            headers = visit.headers(self._login)
            if method == "OPTIONS":
                headers["Access-Control-Request-Method"] = "POST"
            body = b'{"language": "evil"}' if method == "POST" else None
            if found := await self._ask(
                method, path, headers, body, may_answer="config" in path or method == "OPTIONS"
            ):
                return found
        return ""

    async def _ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes | None,
        *,
        may_answer: bool,
    ) -> str:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, self._server.url + path, headers=headers, data=body, allow_redirects=False
            ) as answer,
        ):
            if "Access-Control-Allow-Origin" in answer.headers:
                return f"{method} {path} may be read by the page"
            # Without CORS a page cannot read it; under a name of its own it could.
            is_own = headers["Host"] == urlsplit(self._server.url).netloc
            if answer.status < 400 and not (may_answer and is_own):
                return f"{method} {path}: {answer.status}"
        return ""

    async def _socket(self, visit: Visit) -> str:
        return await self._knock("/api/v1/events/stream", visit)

    async def _through(self, visit: Visit) -> str:
        headers = visit.headers(self._login)
        found = await self._ask(
            "GET", f"{self._gateway}/api/conversations", headers, None, may_answer=False
        )
        return found or await self._knock(f"{self._gateway}/sockets/events/1", visit)

    async def _socketio(self, visit: Visit) -> str:
        query = f"?EIO=4&conversation_id={self._conversation}"
        headers = visit.headers(self._login)
        polled = await self._poll(f"/socket.io/{query}&transport=polling", headers)
        return polled or await self._knock(f"/socket.io/{query}&transport=websocket", visit, "40")

    async def _poll(self, path: str, headers: dict[str, str]) -> str:
        """Open the event socket by polling and ask to join; only an answer to that lets in."""
        url = self._server.url
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(url + path) as opened:
                text = await opened.text()
                if opened.status >= 400:
                    return ""
            if not text.startswith("0"):
                return ""
            sid = msgspec.json.decode(text[1:])["sid"]
            async with session.post(f"{url}{path}&sid={sid}", data=b"40") as joined:
                if joined.status >= 400:
                    return ""
            async with session.get(f"{url}{path}&sid={sid}") as told:
                said = await told.text()
        return "" if "40{" not in said else f"joined: {said[:80]}"

    async def _knock(self, path: str, visit: Visit, first: str = "") -> str:
        try:
            async with (
                aiohttp.ClientSession(headers=visit.headers(self._login)) as session,
                session.ws_connect(self._server.url + path) as socket,
            ):
                while True:
                    said = await socket.receive(timeout=20)
                    if said.type is not aiohttp.WSMsgType.TEXT:
                        return ""
                    if not first or not said.data.startswith("0"):
                        return "" if said.data.startswith("44") else f"it says {said.data[:80]}"
                    await socket.send_str(first)
        except aiohttp.WSServerHandshakeError:
            return ""


async def run(ground: Ground) -> Outcome:
    async with serving(
        ground.place("server"), config={"server": {"first_message_seconds": 1.0}}
    ) as server:
        await server.client.save_settings()
        name = await server.client.start_conversation(None)
        sandbox_id = (await server.client.conversation(name))["sandbox_id"]
        own = server.url.removeprefix("http://")
        begun = await server.client.post("/api/v1/logins", json={"api_key": server.client.key})
        login = login_headers(begun)
        browser = Browser(server, login, sandbox_id, name)
        visits = [
            Visit(host=host.format(own=own), origin=origin.format(own=own.partition(":")[0]))
            for host in HOSTS
            for origin in ORIGINS
        ]
        if ground.scale < 1:
            visits = ground.chance.sample(visits, ground.count(len(visits), least=8))
        visits.append(Visit(host=own, origin=server.url, is_thief=True))
        for visit in visits:
            await browser.try_all(visit)
        kept = (await server.client.get("/api/settings")).json()["language"]
        headers = {**login, "Origin": server.url}
        own_page = await server.client_with(None).get("/api/settings", headers=headers)
    wrong = [*browser.let_in]
    wrong += ["a setting was changed"] if kept == "evil" else []
    wrong += ["the page of the server itself is shut out"] if own_page.status != 200 else []
    tried, let_in = await try_ports(ground)
    wrong += let_in
    return Outcome(
        did=(
            f"{len(visits)} pairs of Host and Origin with a login or its cookie, over 4 transports;"
            f" {tried} attempts by pages at another port of the host in Chromium, and with what they"
            " collect and plant"
        ),
        figures=(
            Figure(what="visits", value=browser.tried, at_least=4 * len(visits)),
            zero("that were let in", wrong),
        ),
        problems=tuple(wrong),
    )


ROW: Final = Row(
    name="origins", half=Half.IN, promise="a web page elsewhere cannot drive it", run=run
)
