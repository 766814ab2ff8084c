"""No path escapes: what a client names stays in the workspace, below the port, among the pages.

The agent server notes every path that it is asked for; outside of the workspace it has something at
each of them. Pages and ports are asked for over connections that leave the path as it is.
"""

import posixpath
import shlex
from collections.abc import Iterator
from typing import Any, Final

import aiohttp
from yarl import URL

from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Client

CASES: Final = 2000
_OUTSIDE: Final = b"what is outside"
_MARKS: Final = (_OUTSIDE, b"root:x:0:", b"SQLite format 3", b"llm_model")
_UPS: Final = (
    *("../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%252f", "..\\", "..%5c", "....//", "..;/"),
    *("%c0%ae%c0%ae/", "..%c0%af", "..%00/", "./../", ".%2e/", "%u002e%u002e/", "．．/"),  # noqa: RUF001  # meant
    *("a/../../", "//..//", "..//", "/../", "..\t/", "..%0a/", "~/../", "..././"),
)
_TARGETS: Final = (
    *("etc/passwd", "data/agentsvc.db", "data/master.key", "root/.ssh/id_rsa", "api/settings"),
    *("proc/self/environ", "server_info", "sandboxes/{other}/agent/api/conversations"),
)
_DEPTHS: Final = (1, 2, 4, 8)


def payloads(data: str, other: str) -> Iterator[str]:
    """Yield names that would lead out of where they are put."""
    for target in _TARGETS:
        for up in _UPS:
            for depth in _DEPTHS:
                yield up * depth + target.format(other=other)
        yield "/" + target.format(other=other)
        yield "file:///" + target
        yield "\\\\host\\share\\" + target
    for plain in (
        "/etc/passwd",
        f"{data}/agentsvc.db",
        f"{data}/master.key",
        "/proc/self/root",
    ):
        yield from (plain, f"/{plain}", f"./{plain}", f"{plain}%00.md", f"{plain}/.", f"//{plain}")


class Everything(dict[str, bytes]):
    """Files of a sandbox, of which there is one at every path outside of a workspace."""

    def __init__(self, *roots: str) -> None:
        super().__init__()
        self._roots = roots
        self.asked: list[str] = []

    def is_outside(self, path: str) -> bool:
        plain = posixpath.normpath(path)
        return not any(plain == root or plain.startswith(f"{root}/") for root in self._roots)

    def get(self, key: str, default: Any = None) -> Any:
        if not self.is_outside(key):
            return super().get(key, default)
        self.asked.append(key)
        return _OUTSIDE

    def __setitem__(self, key: str, value: bytes) -> None:
        if self.is_outside(key):
            self.asked.append(key)
        super().__setitem__(key, value)


class Climber:
    """A user who names paths, in every operation that takes one."""

    def __init__(self, server: Server, client: Client, name: str, sandbox_id: str) -> None:
        self._url = server.url
        self._client = client
        self._old = f"/api/conversations/{name}"
        self._new = f"/api/v1/app-conversations/{name}"
        self._sandbox_id = sandbox_id
        self.escaped: list[str] = []
        self.tried = 0

    async def by_operation(self, payload: str) -> None:
        for path, member in (
            (f"{self._old}/list-files", "path"),
            (f"{self._old}/select-file", "file"),
            (f"{self._old}/git/diff", "path"),
            (f"{self._new}/file", "file_path"),
            (f"{self._new}/files", "path"),
            (f"{self._new}/git/changes", "path"),
            (f"{self._new}/git/diff", "path"),
        ):
            answer = await self._client.get(path, params={member: payload})
            self._look(f"{path.rpartition('/')[2]} {payload}", answer.status, answer.body)
        form = aiohttp.FormData()
        form.add_field("files", b"x", filename=payload.replace("\n", ""))
        answer = await self._client.post(f"{self._old}/upload-files", data=form)
        self._look(f"upload {payload}", answer.status, answer.body)

    async def by_path(self, session: aiohttp.ClientSession, key: str, payload: str) -> None:
        """Ask for pages without a key, and for a port with that of the sandbox only."""
        quoted = "".join(
            one
            if one.isascii() and one.isprintable() and one not in ' "<>#'
            else f"%{ord(one) % 256:02x}"
            for one in payload
        )
        for top, is_port in (
            ("/console/0/", False),
            ("/docs/", False),
            ("/docs/guide/", False),
            ("/", False),
            (f"/sandboxes/{self._sandbox_id}/agent/", True),
            (f"/sandboxes/{self._sandbox_id}/", True),
        ):
            headers = {"X-Session-API-Key": key} if is_port else {}
            url = URL(f"{self._url}{top}{quoted}", encoded=True)
            async with session.get(url, headers=headers, allow_redirects=False) as answer:
                body = await answer.read()
            self._look(f"GET {top}{quoted}", answer.status, body)

    def _look(self, what: str, status: int, body: bytes) -> None:
        self.tried += 1
        if status < 400 and any(mark in body for mark in _MARKS):
            self.escaped.append(f"{what}: {status} {body[:60]!r}")
        if status >= 500 and status not in (502, 503):
            self.escaped.append(f"{what}: {status}")


def _commands_outside(commands: list[str], files: Everything) -> list[str]:
    """Return the directories outside that a listing goes to."""
    found = []
    for command in commands:
        for line in command.splitlines():
            words = shlex.split(line) if line.startswith("cd ") else []
            if "--" in words and files.is_outside(words[words.index("--") + 1]):
                found.append(f"listed {words[words.index('--') + 1]}")
    return found


async def run(ground: Ground) -> Outcome:
    async with serving(ground.place("server")) as server:
        client = await server.add_user("ann")
        await client.save_settings()
        mine, theirs = client, server.client
        await theirs.save_settings()
        name = await mine.start_conversation(None)
        other = await theirs.start_conversation(None)
        found = await mine.conversation(name)
        agent = server.place.agent
        sandboxes = {
            conversation: next(one for one in agent.sandboxes.values() if one.key == key)
            for conversation, key in (
                (name, found["session_api_key"]),
                (other, (await theirs.conversation(other))["session_api_key"]),
            )
        }
        own = sandboxes[name]
        root = str(
            (await mine.get(f"/api/v1/app-conversations?ids={name}")).json()[0].get("working_dir")
            or own.working_dir
        )
        own.files = files = Everything(root.rstrip("/"), own.working_dir.rstrip("/"))
        other_id = (await theirs.conversation(other))["sandbox_id"]
        asked_before = len(sandboxes[other].requests)
        names = list(payloads(str(server.installation.data.path), other_id))
        count = ground.count(CASES, least=40)
        chosen = ground.chance.choices(names, k=-(-count // 13))
        climber = Climber(server, mine, name, found["sandbox_id"])
        async with aiohttp.ClientSession() as session:
            for payload in chosen:
                await climber.by_operation(payload)
                await climber.by_path(session, found["session_api_key"], payload)
        # It has to be seen that the notes are taken.
        assert files.get("/etc/passwd") == _OUTSIDE
        reached = files.asked[:-1]
        reached += _commands_outside(own.commands, files)
        stranger = [
            request
            for request in sandboxes[other].requests[asked_before:]
            if ".." in request or "passwd" in request or request.endswith("/api/conversations")
        ]
    problems = [
        *climber.escaped,
        *(f"the agent server was asked for {path}" for path in reached),
        *(f"another sandbox was asked for {path}" for path in stranger),
    ]
    return Outcome(
        did=(
            f"{len(chosen)} names that lead out, each in 8 operations with files, in 3 places of pages"
            " without a key, and behind 2 ports with the key of the sandbox only; the agent server"
            " notes what it is asked for"
        ),
        figures=(
            Figure(what="cases", value=climber.tried, at_least=count),
            zero("that got out", problems),
        ),
        problems=tuple(problems),
    )


ROW: Final = Row(name="paths", half=Half.IN, promise="no path escapes", run=run)
