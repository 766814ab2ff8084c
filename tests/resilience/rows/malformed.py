"""No answer is a 5xx and none hangs, however the request is made.

Requests of every operation are mutated, in their bytes and in their JSON, and sent over plain
sockets. Beside them come slow bodies, half-open connections and floods of headers. The git hosting
services that the server asks for its users are in this process.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from random import Random
from typing import Any, Final

import msgspec

from agentsvc.base.values import monotonic
from agentsvc.domain.orders import Provider
from agentsvc.http.routes import OF_USERS, Scope
from tests.description import Operation, example_path
from tests.git_hosts import GitHosts
from tests.resilience.allowed import Said, run_schemathesis
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.rows.access import OPERATIONS
from tests.resilience.server import Server, serving
from tests.service import Client

REQUESTS: Final = 100_000
SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_CONVERSATIONS: Final = 8
_WHOLE: Final = 0.02
"""From which scale on schemathesis is run, which takes more than a minute."""
_STREAMS: Final = re.compile(r"stream|/download|zip-directory")
_KEEPS_TOKENS: Final = re.compile(r"git-providers|provider-tokens|reset-settings")
"""What changes where git hosting services are. A user sends it who asks none: those that a mutated
request names need not be there, and to say so is a 502."""
_STATUS: Final = re.compile(rb"\AHTTP/\d\.\d (\d{3}) ")
_LENGTH: Final = re.compile(rb"\r\nContent-Length: (\d+)\r\n", re.IGNORECASE)
_NASTY: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1.5, 2**63, -(2**63) - 1, 10**40, 1e308, "", "\0", "x" * 5000, "\ud7ff😀",
    "../../etc/passwd", "${jndi:ldap://x}", "' OR 1=1 --", [], [[]], {}, {"": {}}, [None] * 50,
)  # fmt: skip
_ODD_IDS: Final = 0.2
_OTHERS_IDS: Final = 0.4
_ODD_BYTES: Final = (
    b"\0",
    b"\xff",
    b"\r\n",
    b"\n",
    b"\r",
    b"%",
    b"%00",
    b"..",
    b"{",
    b'"',
    b"\t",
    b":",
    b"\xed\xa0\x80",
)


type Ids = dict[str, str]
"""Values of parameters in a path."""


class Fuzz:
    """Sends mutated requests, and remembers what is answered as it may not be.

    Most are of conversations of the user `asking`, some of `others`, and what deletes is only of
    those, so that there is something to ask for to the end.
    """

    def __init__(
        self,
        server: Server,
        chance: Random,
        *,
        own: Sequence[Ids],
        others: Ids,
        asking: Client,
        keeping: Client,
    ) -> None:
        self._host, _, port = server.url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._chance = chance
        self._own = own
        self._others = others
        self._asking = asking
        self._keeping = keeping
        self._operations = [
            one
            for one in OPERATIONS
            if one.route.scope in {*OF_USERS, Scope.OPEN, Scope.SANDBOX}
            and not _STREAMS.search(one.path)
        ]
        self.sent = 0
        self.statuses: dict[int, int] = {}
        self.failures: list[str] = []
        self.hangs: list[str] = []
        self.slowest = 0.0

    async def send_many(self, count: int) -> None:
        connection: Connection | None = None
        for _ in range(count):
            connection = connection or await Connection.open(self._host, self._port)
            raw = self._make()
            if not await self._send(connection, raw):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    async def _send(self, connection: "Connection", raw: bytes) -> bool:
        """Send one request; say whether the connection can be used again."""
        self.sent += 1
        began = monotonic()
        try:
            async with asyncio.timeout(SECONDS):
                status, is_open = await connection.ask(raw)
        except TimeoutError:
            # What waits for more of a request that is not whole waits rightly.
            connection.end()
            try:
                async with asyncio.timeout(SECONDS):
                    status, _ = await connection.answer()
            except TimeoutError:
                self.hangs.append(repr(raw[:300]))
                return False
            is_open, began = False, monotonic()
        self.slowest = max(self.slowest, monotonic() - began)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.failures.append(f"{status}: {raw[:400]!r}")
        return is_open

    def _make(self) -> bytes:
        operation = self._chance.choice(self._operations)
        path = example_path(operation, self._ids(operation))
        body = self._body(operation)
        sender = self._keeping if _KEEPS_TOKENS.search(operation.path) else self._asking
        head = (
            f"{operation.method.upper()} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"X-Session-API-Key: {sender.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        raw = head + body
        kind = self._chance.random()
        if kind < 0.25:
            return self._mutate(raw)
        if kind < 0.35:
            flood = b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(self._chance.randint(1, 300)))
            return raw.replace(b"Content-Type", flood + b"Content-Type", 1)
        return raw

    def _ids(self, operation: Operation) -> Ids:
        kind = self._chance.random()
        if kind < _ODD_IDS:
            odd = ("zzz", "\0", "../..", "9" * 99, "%", "é")
            return {name: self._chance.choice(odd) for name in self._others}
        if kind < _OTHERS_IDS or operation.method == "delete":
            return self._others
        return self._chance.choice(self._own)

    def _body(self, operation: Operation) -> bytes:
        examples = [one["example"] for one in operation.contents.values() if "example" in one]
        if not examples:
            return b""
        value = json.loads(json.dumps(examples[0]))
        for _ in range(self._chance.randint(0, 3)):
            value = self._replace(value)
        raw = json.dumps(value).encode()
        return self._mutate(raw) if self._chance.random() < 0.3 else raw

    def _replace(self, value: Any) -> Any:
        """Put something nasty somewhere into a value."""
        if isinstance(value, dict) and value and self._chance.random() < 0.8:
            name = self._chance.choice(sorted(value))
            return {**value, name: self._replace(value[name])}
        if isinstance(value, list) and value and self._chance.random() < 0.8:
            return [self._replace(value[0]), *value[1:]]
        return self._chance.choice(_NASTY)

    def _mutate(self, raw: bytes) -> bytes:
        changed = bytearray(raw)
        for _ in range(self._chance.randint(1, 4)):
            at = self._chance.randrange(len(changed) + 1) if changed else 0
            match self._chance.randint(0, 3):
                case 0:
                    changed[at:at] = self._chance.choice(_ODD_BYTES)
                case 1:
                    del changed[at : at + self._chance.randint(1, 8)]
                case 2 if at < len(changed):
                    changed[at] ^= 1 << self._chance.randint(0, 7)
                case _:
                    changed[at:at] = changed[at : at + 16]
        return bytes(changed)


class Connection:
    """One socket, on which requests go as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        return cls(*await asyncio.open_connection(host, port))

    async def ask(self, raw: bytes) -> tuple[int, bool]:
        """Return the status, 0 where the server hung up, and whether it still listens."""
        self._writer.write(raw)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        return await self.answer()

    async def answer(self) -> tuple[int, bool]:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            while (found := _STATUS.match(head)) and found[1] == b"100":
                head = await self._reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            if found is None:
                return 599, False
            if length is None:
                return int(found[1]), False
            await self._reader.readexactly(int(length[1]))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            return 0, False
        # What was left of a mutated request would be taken for the next one.
        return int(found[1]), int(found[1]) < 300 and b"onnection: close" not in head

    def end(self) -> None:
        """Say that no more will come."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


async def _half_open(server: Server, count: int) -> list[str]:
    """Leave connections in every unfinished state; the server has to answer others meanwhile."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    pairs = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    starts = (
        b"",
        b"G",
        b"POST /api/settings HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"POST /api/settings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    )
    for number, (_, writer) in enumerate(pairs):
        writer.write(starts[number % len(starts)])
    slow = []
    for _ in range(20):
        began = monotonic()
        answer = await server.client.get("/api/settings")
        if answer.status != 200 or monotonic() - began > SECONDS:
            slow.append(f"beside half-open sockets: {answer.status}")
    for _, writer in pairs:
        writer.close()
    return slow


def _allowing(hosts: GitHosts) -> dict[str, Any]:
    return {"git": {"private_hosts": [hosts.url.removeprefix("http://")]}}


async def _conversation(client: Client) -> Ids:
    """Start one, and return what names it."""
    await client.save_settings()
    conversation_id = await client.start_conversation(None)
    found = await client.conversation(conversation_id)
    return {"conversation_id": conversation_id, "sandbox_id": found["sandbox_id"]}


async def _store_tokens(user: Client, hosts: GitHosts) -> None:
    """Give a user a good token for each git hosting service that has a public API."""
    asked = [provider for provider in Provider if provider is not Provider.ENTERPRISE_SSO]
    tokens = {provider.value: {"token": "good", "host": hosts.url} for provider in asked}
    stored = await user.post("/api/v1/secrets/git-providers", json={"provider_tokens": tokens})
    assert stored.status == 200, stored.text
    told = await user.get("/api/user/info")
    assert told.status == 200, told.text


def _bugs(log: str) -> list[str]:
    """Return what a server has written of each of its own faults, with where it was."""
    return [said[:4000] for said in log.split("request failed with an unexpected error")[1:]]


def _shares(total: int, parts: int) -> Iterator[int]:
    return (total // parts + (i < total % parts) for i in range(parts))


async def run(ground: Ground) -> Outcome:
    requests = ground.count(REQUESTS, least=300)
    sockets = ground.count(300, least=10)
    async with (
        GitHosts(unknown=HTTPStatus.NOT_FOUND) as hosts,
        serving(ground.place("server"), config=_allowing(hosts)) as server,
    ):
        others = await _conversation(server.client)
        # A viewer's key would be refused before its body is read; these may do what users may.
        user, keeping = [await server.add_user(name) for name in ("fuzz", "keeping")]
        await _store_tokens(user, hosts)
        untouched, *own = [await _conversation(user) for _ in range(1 + _CONVERSATIONS)]
        fuzz = Fuzz(server, ground.chance, own=own, others=others, asking=user, keeping=keeping)
        await asyncio.gather(*(fuzz.send_many(count) for count in _shares(requests, _AT_ONCE)))
        half_open = await _half_open(server, sockets)
        said = Said(told="schemathesis was left out at this size")
        if ground.scale >= _WHOLE:
            made = ground.place("allowed")
            said = await run_schemathesis(
                server, user, await user.conversation(untouched["conversation_id"]), made
            )
        bugs = _bugs(server.installation.log)
        # And it is as it was before.
        assert (await server.client.get("/api/settings")).status == 200
    told = msgspec.json.encode(dict(sorted(fuzz.statuses.items()))).decode()
    return Outcome(
        did=(
            f"requests of {len(OPERATIONS)} operations, mutated in bytes and JSON, with floods of"
            f" headers, over {_AT_ONCE} sockets; {sockets} half-open ones; statuses {told};"
            f" {said.told}"
        ),
        figures=(
            Figure(what="requests", value=fuzz.sent, at_least=requests),
            zero("answers that are a 5xx", [*fuzz.failures, *said.failures]),
            zero("bugs in the log", bugs),
            zero(f"hangs over {SECONDS:.0f} s", fuzz.hangs + half_open),
        ),
        problems=(*bugs, *fuzz.failures, *fuzz.hangs, *half_open, *said.failures),
    )


ROW: Final = Row(name="malformed", half=Half.IN, promise="malformed input", run=run)
