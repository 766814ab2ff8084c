"""A whole server in the test's own process, behind a real socket, and a client for it."""

import asyncio
import json as jsonlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.app import build_app
from agentsvc.base.values import Secret
from agentsvc.config.schema import Config
from agentsvc.http.keys import EVENT_BUS, KEYRING
from agentsvc.http.server.application import Runner
from agentsvc.http.urls import prefix_of
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.description import Watch
from tests.new_data import lay_database

WAIT_SECONDS = 30.0
LLM = {"llm_model": "openai/scripted", "llm_api_key": "model-key-1"}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response that was read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def login_headers(answer: Answer) -> dict[str, str]:
    """Return both parts of the login that an answer begins, as a page of the server sends them."""
    assert answer.status == 201, answer.text
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    return {"Cookie": cookie, "X-Agentsvc-Login": answer.json()["page_token"]}


class Client:
    """One caller of a server; sends its key with each request, waits as long as it has patience."""

    def __init__(self, base_url: str, key: str | None, *, patience: float = WAIT_SECONDS) -> None:
        self.base_url = base_url
        self.key = key
        self.headers: dict[str, str] = {}
        """What streams are opened with, beside the key."""
        self.patience = patience
        self._session = aiohttp.ClientSession(
            headers={"X-Session-API-Key": key} if key else {},
            timeout=aiohttp.ClientTimeout(total=patience + 2),
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(self, method: str, path: str, **options: Any) -> Answer:
        if "json" in options:
            options["data"] = jsonlib.dumps(options.pop("json")).encode()
            options.setdefault("headers", {})
            options["headers"] = {"Content-Type": "application/json", **options["headers"]}
        async with self._session.request(method, self.base_url + path, **options) as response:
            return Answer(
                status=response.status, headers=response.headers, body=await response.read()
            )

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def post(self, path: str, **options: Any) -> Answer:
        return await self.request("POST", path, **options)

    async def put(self, path: str, **options: Any) -> Answer:
        return await self.request("PUT", path, **options)

    async def patch(self, path: str, **options: Any) -> Answer:
        return await self.request("PATCH", path, **options)

    async def delete(self, path: str, **options: Any) -> Answer:
        return await self.request("DELETE", path, **options)

    # What many tests do

    async def save_settings(self, **fields: Any) -> None:
        answer = await self.post("/api/settings", json={**LLM, **fields})
        assert answer.status == 200, answer.text

    async def start_task(self, text: str | None = "please work", **fields: Any) -> dict[str, Any]:
        body: dict[str, Any] = dict(fields)
        if text is not None:
            body["initial_message"] = {"content": [{"type": "text", "text": text}]}
        answer = await self.post("/api/v1/app-conversations", json=body)
        assert answer.status == 200, answer.text
        task: dict[str, Any] = answer.json()
        return task

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.get(f"/api/v1/app-conversations/start-tasks?ids={task_id}")
        [task] = answer.json()
        found: dict[str, Any] = task
        return found

    async def end_of_start(
        self, task_id: str, *, time_limit: float | None = None
    ) -> dict[str, Any]:
        async with asyncio.timeout(time_limit or self.patience):
            while True:
                task = await self.task(task_id)
                if task["status"] in ("READY", "ERROR"):
                    return task
                await asyncio.sleep(0.03)

    async def start_conversation(
        self, text: str | None = "please work", *, time_limit: float | None = None, **fields: Any
    ) -> str:
        """Start a conversation and return its id once it is ready."""
        task = await self.start_task(text, **fields)
        ended = await self.end_of_start(task["id"], time_limit=time_limit)
        assert ended["status"] == "READY", ended["detail"]
        return str(ended["app_conversation_id"])

    async def conversation(self, conversation_id: str) -> dict[str, Any]:
        answer = await self.get(f"/api/v1/app-conversations?ids={conversation_id}")
        [conversation] = answer.json()
        found: dict[str, Any] = conversation
        return found

    async def wait_for_conversation(
        self,
        conversation_id: str,
        is_enough: Callable[[dict[str, Any]], bool],
        *,
        time_limit: float | None = None,
    ) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        try:
            async with asyncio.timeout(time_limit or self.patience):
                while True:
                    seen = await self.conversation(conversation_id)
                    if is_enough(seen):
                        return seen
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the conversation stayed like this: {seen}") from None

    async def wait_for_execution(
        self, conversation_id: str, status: str, *, time_limit: float | None = None
    ) -> dict[str, Any]:
        return await self.wait_for_conversation(
            conversation_id,
            lambda seen: seen["execution_status"] == status,
            time_limit=time_limit,
        )

    async def sandbox(self, sandbox_id: str) -> dict[str, Any] | None:
        answer = await self.get(f"/api/v1/sandboxes?id={sandbox_id}")
        [sandbox] = answer.json()
        found: dict[str, Any] | None = sandbox
        return found

    async def wait_for_sandbox(
        self, sandbox_id: str, status: str, *, time_limit: float | None = None
    ) -> dict[str, Any]:
        seen: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(time_limit or self.patience):
                while True:
                    seen = await self.sandbox(sandbox_id)
                    if seen is not None and seen["status"] == status:
                        return seen
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"the sandbox stayed like this: {seen}") from None

    async def events(self, conversation_id: str) -> list[dict[str, Any]]:
        """Return every stored event of a conversation, oldest first."""
        found: list[dict[str, Any]] = []
        page_id = ""
        while True:
            query = f"?page_id={page_id}" if page_id else ""
            answer = await self.get(f"/api/v1/conversation/{conversation_id}/events/search{query}")
            page = answer.json()
            found.extend(page["items"])
            if page["next_page_id"] is None:
                return found
            page_id = page["next_page_id"]


class Service:
    """One installation: it can be stopped and started again on the same data.

    To close it fails if it has answered anything that is not as it is described.
    """

    def __init__(self, data_dir: Path, config: Config, make_plugins: Callable[[], PluginHost]):
        self.data_dir = data_dir
        self.config = config
        self.make_plugins = make_plugins
        self._runner: Runner | None = None
        self._clients: list[Client] = []
        self._wires: list[asyncio.WriteTransport] = []
        self._watches: list[Watch] = []
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def app(self) -> web.Application:
        assert self._runner is not None
        return self._runner.app

    def listeners(self) -> int:
        """Return how many streams and sockets listen inside the server."""
        return self.app[EVENT_BUS].count()

    async def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        server = msgspec.structs.replace(self.config.server, port=self._port, internal_url=self.url)
        config = msgspec.structs.replace(self.config, server=server)
        await asyncio.to_thread(lay_database, self.data_dir)
        try:
            app = await build_app(config, data_dir=self.data_dir, plugins=self.make_plugins())
            self._watches.append(Watch(app))
            self._runner = Runner(
                app,
                grace_seconds=2,
                prefix=prefix_of(server.public_url),
                limits=server,
                max_of_sandbox=config.limits.connections_per_sandbox,
            )
            await self._runner.setup()
        except BaseException:
            listener.close()
            raise
        await self._runner.listen(listener)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def close(self) -> None:
        # A server that has something left for one of them would keep its end of it, too.
        for wire in self._wires:
            wire.abort()
        for client in self._clients:
            await client.close()
        await self.stop()
        assert [problem for watch in self._watches for problem in watch.problems] == []

    async def make_client(
        self,
        user: str | None = "admin",
        role: Role = Role.ADMIN,
        *,
        scope: KeyScope = KeyScope.ADMIN,
    ) -> Client:
        """Return a client with a key of this user, or without a key for None."""
        key = await self._make_key(user, role, scope) if user else None
        return self.client_with(key.reveal() if key else None)

    def keep(self, wire: asyncio.WriteTransport) -> None:
        """Have a connection of the test's own end at the latest when this is closed."""
        self._wires.append(wire)

    def client_with(self, key: str | None) -> Client:
        client = Client(self.url, key)
        self._clients.append(client)
        return client

    async def _make_key(self, user: str, role: Role, scope: KeyScope) -> Secret:
        keys = self.app[KEYRING]
        user_id = await keys.find_user(user) or await keys.create_user(user, role)
        return (await keys.create_key(user_id, "test", scope=scope))[1]
