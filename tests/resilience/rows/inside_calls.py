"""It cannot be made to call inside: URLs of a user who is no administrator, wherever it takes some.

The server runs with a module that notes each connection it begins, and that knows names which lead
to addresses inside; see `watching/sitecustomize.py`. Redirects are answered by a host that is known.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

from aiohttp import web

from agentsvc.plugin.egress.addresses import is_outside, meant
from tests.http.gateway.steps import until
from tests.http.v1.streaming import Feeder, events
from tests.live.client import PATIENCE
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Client

SPELLINGS: Final = 500


def own_addresses() -> list[str]:
    """Return the addresses of this machine, as its interfaces have them."""
    listed = subprocess.run(
        ["ip", "-json", "address"], capture_output=True, text=True, check=True
    ).stdout
    return [one["local"] for link in json.loads(listed) for one in link["addr_info"]]


_WATCHING: Final = Path(__file__).parents[1] / "watching"
_TRAP: Final = 4711
_V1: Final = "/api/v1"
_OWN: Final = "93.184.215.20"
"""Where the server's own name leads, as behind a router: no interface has that address."""
_OWN_NAME: Final = "at-93-184-215-20.inside.test"
_HOSTS: Final = (
    *(_OWN, _OWN_NAME, _OWN_NAME.upper() + ".", "0x5db8d714", "[::ffff:5db8:d714]"),
    *("[64:ff9b::5db8:d714]", "[2002:5db8:d714::1]", "[fd00:ec2::254]", "[2001:0:7f00:1::]"),
    *("[2a00:1450::5efe:10.0.0.1]", *(f"[{a}]" if ":" in a else a for a in own_addresses())),
    *("127.0.0.1", "127.1", "127.0.1", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "2130706433"),
    *("017700000001", "127.0.0.1.", "localhost", "LOCALHOST", "localhost.", "a.localhost"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]"),
    *("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "0.0.0.0", "0", "10.0.0.1", "10.1"),  # noqa: S104  # a host to call
    *("172.16.0.1", "192.168.0.1", "192.168.1", "169.254.169.254", "0xa9fea9fe", "2852039166"),
    *("[fe80::1]", "[fe80::1%25lo]", "[fe80::1%lo]", "[fd00::1]", "[fec0::1]", "100.64.0.1"),
    *("198.18.0.1", "192.0.0.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("[ff02::1]", "①②⑦.⓪.⓪.①", "127。0。0。1", "１２７.0.0.1", "%31%32%37.0.0.1", "127.0.0.1%00"),  # noqa: RUF001  # meant
    *("at-127-0-0-1.inside.test", "at-10-0-0-1.inside.test", "at-169-254-169-254.inside.test"),
    *("at-192-168-0-1.inside.test", "at-100-64-0-1.inside.test", "AT-127-0-0-1.INSIDE.TEST."),
    *("flips.inside.test", "both.inside.test", "metadata.google.internal", "ip6-localhost"),
)
_FORMS: Final = (
    "http://{host}:{port}/",
    "https://{host}:{port}/",
    "HTTP://{host}:{port}/a/b",
    "http://public.example@{host}:{port}/",
    "http://a:b@{host}:{port}/",
    "http://{host}:{port}#@public.example/",
    "http://{host}:{port}\\@public.example/",
    "http://public.example\\@{host}:{port}/",
    "http:{host}:{port}/",
    "http:///{host}:{port}/",
    "http://{host}:{port}?@public.example/",
    "http://{host}\t:{port}/",
    " http://{host}:{port}/",
    "http://{host}:{port}/../..//x",
)
_PORTS: Final = (_TRAP, 80, 443)


def spellings() -> Iterator[str]:
    """Yield URLs that lead inside, if they lead anywhere."""
    for form in _FORMS:
        for host in _HOSTS:
            for port in _PORTS:
                yield form.format(host=host, port=port)


class Caller:
    """A user who would have the server call a URL, in each way there is."""

    def __init__(self, server: Server, client: Client, feeder: Feeder) -> None:
        self._server = server
        self._client = client
        self._feeder = feeder
        self._told = 0
        self.taken: dict[str, int] = {"webhook": 0, "git host": 0, "model": 0}

    async def try_all(self, url: str) -> None:
        await self._as_webhook(url)
        await self._as_git_host(url)
        await self._as_model(url)

    async def _as_webhook(self, url: str) -> None:
        path = f"{_V1}/webhook-subscriptions"
        made = await self._client.post(path, json={"url": url})
        if made.status != 201:
            assert made.status in (403, 422), made.text
            return
        self.taken["webhook"] += 1
        one = f"{path}/{made.json()['id']}"
        self._told += 1
        await self._feeder.send(events(1, first=10_000 + self._told))

        async def is_tried() -> bool:
            found = (await self._client.get(f"{one}/deliveries")).json()["items"]
            return any(delivery["attempts"] for delivery in found)

        await until(is_tried, time_limit=PATIENCE)
        await self._client.delete(one)

    async def _as_git_host(self, url: str) -> None:
        tokens = {"provider_tokens": {"gitlab": {"token": "good", "host": url}}}
        answer = await self._client.post(f"{_V1}/secrets/git-providers", json=tokens)
        assert answer.status in (200, 401, 422, 502), answer.text
        if answer.status == 200:
            self.taken["git host"] += 1
            await self._client.get("/api/user/repositories?selected_provider=gitlab")

    async def _as_model(self, url: str) -> None:
        settings = {"llm_model": "openai/any", "llm_base_url": url, "llm_api_key": "k"}
        answer = await self._client.post("/api/settings", json=settings)
        if answer.status != 200:
            assert answer.status == 422, answer.text
            return
        self.taken["model"] += 1
        asked = await self._client.post(f"{_V1}/settings/test-model")
        assert asked.status == 200, asked.text


@asynccontextmanager
async def signpost(target: str) -> AsyncIterator[str]:
    """Give the URL of a host that sends everybody elsewhere."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": target})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _redirected(server: Server, client: Client, known: str) -> int:
    """Ask a host that may be asked and redirects; return in how many ways it was."""
    settings = {"llm_model": "openai/any", "llm_base_url": f"http://{known}", "llm_api_key": "k"}
    await client.post("/api/settings", json=settings)
    asked = (await client.post(f"{_V1}/settings/test-model")).json()
    assert asked["status"] == 307, asked
    tokens = {"provider_tokens": {"gitlab": {"token": "good", "host": f"http://{known}"}}}
    stored = await client.post(f"{_V1}/secrets/git-providers", json=tokens)
    assert stored.status == 200, stored.text
    return 2


async def _is_watched(server: Server, file: Path) -> bool:
    """Have an administrator's git host asked, which may be inside: it has to be noted."""
    host = f"http://127.0.0.1:{_TRAP}"
    tokens = {"provider_tokens": {"gitlab": {"token": "good", "host": host}}}
    await server.client.post(f"{_V1}/secrets/git-providers", json=tokens)
    return f"127.0.0.1 {_TRAP}" in file.read_text()  # noqa: ASYNC240  # a moment


def _inside(file: Path, known: Sequence[str]) -> list[str]:
    """Return the connections to addresses that are not public, or the server's own."""
    lines = set(file.read_text().splitlines()) if file.exists() else set()
    return [
        f"a connection to {line}"
        for line in sorted(lines)
        if not _is_elsewhere(ip_address(line.split()[0].partition("%")[0])) and line not in known
    ]


def _is_elsewhere(address: IPv4Address | IPv6Address) -> bool:
    return is_outside(address) and str(meant(address)) != _OWN


async def run(ground: Ground) -> Outcome:
    urls = list(spellings())
    urls = ground.chance.sample(urls, ground.count(SPELLINGS, least=20))
    file = ground.directory / "connections"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(_WATCHING), os.environ.get("PYTHONPATH", "")]),
        "CAMPAIGN_CONNECTIONS": str(file),
        "CAMPAIGN_PORTS": ",".join(map(str, _PORTS)),
    }
    async with signpost(f"http://127.0.0.1:{_TRAP}/") as known:
        config = {
            "server": {"internal_url": f"http://{_OWN_NAME}"},
            "git": {"check_tokens": True, "private_hosts": [known]},
            "sandboxes": {"model_hosts": [known]},
            "webhooks": {"send_seconds": 3.0},
        }
        async with serving(
            ground.place("server"), config=config, environment=environment
        ) as server:
            client = await server.add_user("ann")
            caller = Caller(server, client, await server.feeder(client))
            for url in urls:
                await caller.try_all(url)
            redirects = await _redirected(server, client, known)
            inside = await asyncio.to_thread(_inside, file, ())
            is_watched = await _is_watched(server, file)
    broken = [] if is_watched else ["the watch does not see what an administrator has asked"]
    taken = ", ".join(f"{number} as a {way}" for way, number in caller.taken.items())
    return Outcome(
        did=(
            f"{len(urls)} spellings of URLs by a member, each as webhook, git host and model, which"
            f" were asked where they were taken ({taken}); {redirects} redirects inside; every"
            " connection that the server begins is noted"
        ),
        figures=(
            Figure(what="spellings", value=len(urls), at_least=ground.count(SPELLINGS, least=20)),
            zero("connections to denied ranges", inside + broken),
        ),
        problems=tuple(inside + broken),
    )


ROW: Final = Row(name="inside", half=Half.IN, promise="it cannot be made to call inside", run=run)
