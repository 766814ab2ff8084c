"""An agent server that is not one: it answers like the real one and plays scripts.

One FakeAgent serves any number of sandboxes on one port; the session key in a request says which
sandbox is meant. Give `on_create` to the FakeBackend, and each sandbox it makes has an agent
server that reports to the webhooks its order names. The scripts are those of `testing.llm`.
"""

import asyncio
import base64
import gzip
import re
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp import web

from agentsvc.agentserver import CommandResult
from agentsvc.base import Supervisor, new_id
from agentsvc.plugin import Order
from agentsvc.testing.listening import Listening
from agentsvc.testing.llm import DEMO, FOLLOW_UP, Playbook, Script
from tests.fake_conversation import FakeConversation, Json, observe, read_history
from tests.fake_sandbox import FakeSandbox

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_KEY_HEADER: Final = "X-Session-API-Key"
_INIT_PATH: Final = "/api/init"
_RETRY_SECONDS: Final = 0.05
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_TOOLS: Final = ("terminal", "file_editor", "task_tracker", "glob", "grep", "planning_file_editor")

_SANDBOX: Final = web.RequestKey("sandbox", FakeSandbox)
BODY: Final = web.RequestKey("body", dict[str, Any])


def listed(text: str) -> CommandResult:
    """Return what a command that lists files has written, packed as it comes."""
    packed = base64.encodebytes(gzip.compress(text.encode())).decode()
    return CommandResult(exit_code=0, stdout=packed, stderr="")


def make_long_names(folder: Path) -> list[str]:
    """Make a folder whose names are too many bytes to be read at once, and return these in order."""
    folder.mkdir()
    names = [f"{number:03} {'文' * 20}.txt" for number in range(400)]
    for one in names:
        (folder / one).touch()
    return names


def run_in_pieces(command: str) -> CommandResult:
    """Run a command here and read its output as an agent server does: in pieces, each for itself."""
    output = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True).stdout
    pieces = [output[start : start + 4096] for start in range(0, len(output), 4096)]
    text = "".join(piece.decode(errors="replace") for piece in pieces)
    return CommandResult(exit_code=0, stdout=text, stderr="")


class FakeAgent(Listening):
    """An in-process agent server for tests. Use it as an async context manager.

    It listens on a free port of loopback unless it is given one.
    """

    def __init__(
        self,
        script: Script = DEMO,
        *,
        scripts: Mapping[str, Script] | None = None,
        follow_up: Script = FOLLOW_UP,
        title: str | None = "✨ A fake conversation",
        port: int = 0,
    ) -> None:
        self.playbook = Playbook(script, scripts or {}, follow_up)
        self.title = title
        self.reads_history = True
        self.may_run = asyncio.Event()
        """Runs wait for it before they begin; it is set."""
        self.may_run.set()
        self.sandboxes: dict[str, FakeSandbox] = {}
        self._answers: list[tuple[re.Pattern[str], CommandResult, float]] = []
        self._supervisor = Supervisor()
        self._session: aiohttp.ClientSession | None = None
        self._port = port

    @property
    def url(self) -> str:
        """Return the base URL of all its sandboxes."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Begin to listen."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._admit])
        _add_routes(app, self)
        await self._listen(app, grace_seconds=0.1)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), trust_env=False
        )

    async def stop(self) -> None:
        """Stop all runs and close all connections."""
        for sandbox in self.sandboxes.values():
            for conversation in sandbox.conversations.values():
                conversation.interrupt()
        await self._supervisor.stop(1.0)
        if self._session is not None:
            await self._session.close()
        await super().stop()

    # What tests do with it

    def on_create(self, order: Order) -> dict[str, str]:
        """Have an agent server for an order and return the URL of each of its ports."""
        is_dormant = order.env.get("OH_DEFERRED_INIT") == "1"
        name = "OH_SECRET_KEY" if is_dormant else "OH_SESSION_API_KEYS_0"
        key = order.secret_env[name].reveal()
        sandbox = self.sandboxes.get(order.sandbox_id)
        if sandbox is None:
            webhook_url = order.env.get("OH_WEBHOOKS_0_BASE_URL", "")
            working_dir = order.working_dir or "/workspace"
            sandbox = FakeSandbox(order.sandbox_id, key, webhook_url, working_dir)
            self.sandboxes[order.sandbox_id] = sandbox
        sandbox.key, sandbox.is_dormant = key, is_dormant
        sandbox.init_key = key if is_dormant else ""
        return {port.name: self.url for port in order.ports}

    def on_command(self, pattern: str, result: CommandResult, *, seconds: float = 0.0) -> None:
        """Answer commands in which the pattern is found; the rule added last wins."""
        self._answers.insert(0, (re.compile(pattern, re.DOTALL), result, seconds))

    def crash(self, sandbox_id: str) -> None:
        """Let a server die as by SIGKILL: runs end, queued webhooks are lost, nothing answers."""
        sandbox = self.sandboxes[sandbox_id]
        sandbox.is_down = True
        sandbox.queue.clear()
        for conversation in sandbox.conversations.values():
            conversation.lose_run()

    def restart(self, sandbox_id: str) -> None:
        """Bring a crashed server back: what it was doing is an error only its log knows of."""
        self.sandboxes[sandbox_id].is_down = False

    def find_conversation(self, conversation_id: str) -> FakeConversation | None:
        """Return a conversation by its id in either form, whichever sandbox it is in."""
        hex_id = conversation_id.replace("-", "")
        for sandbox in self.sandboxes.values():
            if hex_id in sandbox.conversations:
                return sandbox.conversations[hex_id]
        return None

    # Requests

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        key = request.headers.get(_KEY_HEADER, "")
        is_init = request.path == _INIT_PATH
        sandbox = next(
            (
                one
                for one in self.sandboxes.values()
                if key in (one.key, one.init_key if is_init else one.key)
            ),
            None,
        )
        if sandbox is None:
            if request.path == "/alive":
                return await handler(request)
            return _error(401, "Unauthorized")
        sandbox.requests.append(f"{request.method} {request.path}")
        if sandbox.slow_seconds:
            await asyncio.sleep(sandbox.slow_seconds)
        if sandbox.is_down:
            _hang_up(request)
            return web.Response()
        if request.path != "/alive" and (status := sandbox.fails(request.path)) is not None:
            return _error(status, "A failure the test ordered")
        if request.content_type == "application/json" and request.can_read_body:
            body = msgspec.json.decode(await request.read(), type=dict[str, Any])
            sandbox.bodies.append((request.path, body))
            request[BODY] = body
        request[_SANDBOX] = sandbox
        if sandbox.is_dormant and request.path not in ("/alive", _INIT_PATH):
            return _error(503, "server is dormant")
        response = await handler(request)
        if request.method == "POST" and sandbox.loses(request.path):
            _hang_up(request)
        return response

    async def get_alive(self, _request: web.Request) -> web.Response:
        """GET /alive."""
        return web.json_response({"status": "ok"})

    async def get_init(self, request: web.Request) -> web.Response:
        """GET /api/init."""
        return _init_state(request[_SANDBOX])

    async def post_init(self, request: web.Request) -> web.Response:
        """POST /api/init: the server hears for whom it is, and takes the keys it is told."""
        sandbox: FakeSandbox = request[_SANDBOX]
        if not sandbox.init_key:
            return _error(404, "Not Found")
        if request.headers.get("X-Init-API-Key") != sandbox.init_key:
            return _error(401, "Unauthorized")
        if not sandbox.is_dormant:
            return _error(400, "server already in state: ready")
        body = request[BODY]
        sandbox.key = body["session_api_keys"][0]
        sandbox.webhook_url = body["webhooks"][0]["base_url"]
        sandbox.is_dormant = False
        return _init_state(sandbox)

    async def get_server_info(self, _request: web.Request) -> web.Response:
        """GET /server_info."""
        info = {"version": "1.58.0", "uptime": 1.0, "idle_time": 0.0, "usable_tools": _TOOLS}
        return web.json_response(info)

    async def get_home(self, request: web.Request) -> web.Response:
        """GET /api/file/home."""
        home = request[_SANDBOX].home
        return web.json_response({"home": home, "favorites": [], "locations": []})

    async def post_upload(self, request: web.Request) -> web.Response:
        """POST /api/file/upload."""
        if not request.query["path"].startswith("/"):
            return _error(400, "Path must be absolute")
        # Not as a form: one that breaks off would leave a file open.
        part = await (await request.multipart()).next()
        data = bytes(await part.read()) if isinstance(part, aiohttp.BodyPartReader) else b""
        request[_SANDBOX].files[request.query["path"]] = data
        return web.json_response({"success": True, "file_size": len(data)})

    async def get_download(self, request: web.Request) -> web.Response:
        """GET /api/file/download."""
        if not request.query["path"].startswith("/"):
            return _error(400, "Path must be absolute")
        data = request[_SANDBOX].files.get(request.query["path"])
        return _error(404, "File not found") if data is None else web.Response(body=data)

    async def get_git_changes(self, request: web.Request) -> web.Response:
        """GET /api/git/changes."""
        sandbox, path = request[_SANDBOX], request.query["path"]
        if path not in sandbox.git_changes:
            return web.json_response([])
        if request.query.get("ref", "HEAD") not in sandbox.git_refs:
            return _error(400, "Git command failed: git rev-parse --verify")
        return web.json_response(sandbox.git_changes[path])

    async def get_git_diff(self, request: web.Request) -> web.Response:
        """GET /api/git/diff."""
        sandbox, path = request[_SANDBOX], request.query["path"]
        if path not in sandbox.git_diffs:
            if path in sandbox.files:
                return web.json_response({"modified": None, "original": None})
            return _error(400, f"File does not exist: {path}")
        if request.query.get("ref", "HEAD") not in sandbox.git_refs:
            return _error(400, "Git command failed: git rev-parse --verify")
        return web.json_response(sandbox.git_diffs[path])

    async def post_command(self, request: web.Request) -> web.Response:
        """POST /api/bash/start_bash_command."""
        sandbox, body = request[_SANDBOX], request[BODY]
        command_id = new_id()
        sandbox.commands.append(body["command"])
        result, seconds = self._find_answer(body["command"])
        loop_time = asyncio.get_running_loop().time()
        sandbox.outputs[command_id] = (loop_time + seconds, result)
        return web.json_response({**body, "id": command_id, "kind": "BashCommand"})

    async def get_outputs(self, request: web.Request) -> web.Response:
        """GET /api/bash/bash_events/search."""
        command_id = request.query["command_id__eq"]
        at, result = request[_SANDBOX].outputs[command_id]
        if asyncio.get_running_loop().time() < at or request.query.get("order__gt", "-1") != "-1":
            return web.json_response({"items": [], "next_page_id": None})
        output = {
            "id": new_id(),
            "command_id": command_id,
            "order": 0,
            "exit_code": result.exit_code,
            "stdout": result.stdout or None,
            "stderr": result.stderr or None,
            "kind": "BashOutput",
        }
        return web.json_response({"items": [output], "next_page_id": None})

    async def post_stop_command(self, request: web.Request) -> web.Response:
        """POST /api/bash/bash_commands/{command_id}/stop."""
        stopped = (0.0, CommandResult(exit_code=-1, stdout="", stderr=""))
        request[_SANDBOX].outputs[request.match_info["command_id"]] = stopped
        return web.json_response({"success": True})

    async def post_skills(self, request: web.Request) -> web.Response:
        """POST /api/skills."""
        return web.json_response({"skills": request[_SANDBOX].skills, "sources": {}})

    async def post_hooks(self, request: web.Request) -> web.Response:
        """POST /api/hooks."""
        return web.json_response({"hook_config": request[_SANDBOX].hook_config})

    async def post_conversation(self, request: web.Request) -> web.Response:
        """POST /api/conversations."""
        sandbox, body = request[_SANDBOX], request[BODY]
        body.setdefault("conversation_id", new_id())
        hex_id = body["conversation_id"].replace("-", "")
        if hex_id in sandbox.conversations:
            return web.json_response(sandbox.conversations[hex_id].info())
        is_other = (body.get("agent_settings") or {}).get("agent_kind") == "acp"
        if not is_other and not ((body.get("agent") or {}).get("llm") or {}).get("model"):
            problem = {"loc": ["body", "agent", "llm"], "msg": "model must be specified in LLM"}
            return web.json_response({"detail": [problem]}, status=422)
        conversation = self._make_conversation(sandbox, body)
        if self.reads_history:
            conversation.remember(read_history(sandbox.files, hex_id))
        sandbox.conversations[hex_id] = conversation
        answer = conversation.info()
        self._tell(sandbox, "conversations", answer)
        conversation.tell_full_state()
        if body.get("initial_message"):
            conversation.add_message(body["initial_message"]["content"])
            self._run(conversation)
        return web.json_response(answer, status=201)

    async def get_conversations(self, request: web.Request) -> web.Response:
        """GET /api/conversations?ids=…."""
        known = request[_SANDBOX].conversations
        wanted = [known.get(one.replace("-", "")) for one in request.query.getall("ids", [])]
        return web.json_response([one and one.info() for one in wanted])

    async def count_conversations(self, request: web.Request) -> web.Response:
        """GET /api/conversations/count?status=…."""
        wanted = request.query.get("status")
        known = [one.info()["execution_status"] for one in request[_SANDBOX].conversations.values()]
        return web.json_response(sum(wanted in (None, status) for status in known))

    async def get_conversation(self, request: web.Request) -> web.Response:
        """GET /api/conversations/{id}."""
        return web.json_response(_conversation(request).info())

    async def delete_conversation(self, request: web.Request) -> web.Response:
        """DELETE /api/conversations/{id}."""
        conversation = _conversation(request)
        async with conversation.step_lock:
            del request[_SANDBOX].conversations[conversation.id]
        info = {**conversation.info(), "execution_status": "deleting"}
        self._tell(request[_SANDBOX], "conversations", info)
        return _done()

    async def post_message(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/events."""
        conversation = _conversation(request)
        if request[_SANDBOX].refused_messages:
            return _error(422, request[_SANDBOX].refused_messages.pop(0))
        stops = conversation.stops
        async with conversation.step_lock:
            conversation.add_message(request[BODY]["content"])
        if request[BODY].get("run") and conversation.stops == stops:
            self._run(conversation)
        return _done()

    async def post_run(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/run."""
        conversation = _conversation(request)
        if conversation.status == "running":
            return _error(409, "Conversation already running. Wait for completion or pause first.")
        self._run(conversation)
        return _done()

    async def post_pause(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/pause."""
        conversation = _conversation(request)
        conversation.pause()
        async with conversation.step_lock:
            self._tell(request[_SANDBOX], "conversations", conversation.info())
        return _done()

    async def post_interrupt(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/interrupt."""
        conversation = _conversation(request)
        conversation.interrupt()
        await self._supervisor.join(f"run {conversation.id}")
        self._tell(request[_SANDBOX], "conversations", conversation.info())
        return _done()

    async def post_confirmation(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/events/respond_to_confirmation."""
        conversation, body = _conversation(request), request[BODY]
        reason = body.get("reason") or "User rejected the action."
        if conversation.confirm(accept=body["accept"], reason=reason):
            self._run(conversation)
        return _done()

    async def post_policy(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/confirmation_policy, which the console sends by the gateway."""
        _conversation(request).policy = request[BODY]["policy"]
        return _done()

    async def post_secrets(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/secrets."""
        conversation = _conversation(request)
        async with conversation.step_lock:
            conversation.body.setdefault("secrets", {}).update(request[BODY]["secrets"])
        return _done()

    async def post_switch_llm(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/switch_llm."""
        _conversation(request).body.setdefault("agent", {})["llm"] = request[BODY]["llm"]
        return _done()

    async def post_switch_acp_model(self, request: web.Request) -> web.Response:
        """POST /api/conversations/{id}/switch_acp_model."""
        settings = _conversation(request).body.get("agent_settings")
        if settings is None:
            return _error(400, "Agent is not ACP")
        settings["acp_model"] = request[BODY]["model"]
        return _done()

    async def post_profile(self, request: web.Request) -> web.Response:
        """POST /api/profiles/{name}."""
        name = request.match_info["name"]
        request[_SANDBOX].profiles[name] = request[BODY]["llm"]
        return web.json_response({"name": name, "message": "saved"}, status=201)

    async def get_events(self, request: web.Request) -> web.Response:
        """GET /api/conversations/{id}/events/search."""
        query = request.query
        events = _conversation(request).events
        since = query.get("timestamp__gte", "")
        events = [one for one in events if one["timestamp"] >= since]
        if query.get("sort_order") == "TIMESTAMP_DESC":
            events.reverse()
        ids = [one["id"] for one in events]
        start = ids.index(query["page_id"]) if query.get("page_id") in ids else 0
        limit = int(query.get("limit", "100"))
        following = ids[start + limit : start + limit + 1]
        page = {
            "items": events[start : start + limit],
            "next_page_id": following[0] if following else None,
        }
        return web.json_response(page)

    # Its work

    def _make_conversation(self, sandbox: FakeSandbox, body: Json) -> FakeConversation:
        hex_id = body["conversation_id"].replace("-", "")

        def use_tool(tool: str, arguments: Mapping[str, Any]) -> tuple[Json, float]:
            return self._use_tool(sandbox, tool, arguments)

        def emit(event: Json) -> None:
            self._tell(sandbox, f"events/{hex_id}", {"parent_id": None, **event})

        return FakeConversation(body, self.playbook, use_tool=use_tool, emit=emit, title=self.title)

    def _run(self, conversation: FakeConversation) -> None:
        async def run() -> None:
            await self.may_run.wait()
            await conversation.run()

        if conversation.status != "running":
            self._supervisor.spawn(f"run {conversation.id}", run)

    def _use_tool(
        self, sandbox: FakeSandbox, tool: str, arguments: Mapping[str, Any]
    ) -> tuple[Json, float]:
        if tool == "terminal":
            command = str(arguments["command"])
            sandbox.commands.append(command)
            result, seconds = self._find_answer(command)
            output = result.stdout + result.stderr
            return observe(tool, output, command=command, exit_code=result.exit_code), seconds
        if tool == "file_editor" and arguments.get("command") == "create":
            path = str(arguments["path"])
            sandbox.files[path] = str(arguments.get("file_text", "")).encode()
            return observe(tool, f"File created successfully at: {path}", path=path), 0.0
        return observe(tool, str(arguments.get("message", ""))), 0.0

    def _find_answer(self, command: str) -> tuple[CommandResult, float]:
        for pattern, result, seconds in self._answers:
            if pattern.search(command):
                return result, seconds
        return CommandResult(exit_code=0, stdout="", stderr=""), 0.0

    def _tell(self, sandbox: FakeSandbox, path: str, body: Json) -> None:
        if not sandbox.webhook_url or not sandbox.has_webhooks or sandbox.is_down:
            return
        sandbox.queue.append((path, msgspec.json.encode(body)))
        self._supervisor.spawn(f"webhooks {sandbox.sandbox_id}", lambda: self._deliver(sandbox))

    async def _deliver(self, sandbox: FakeSandbox) -> None:
        """Send what is queued, in order, events of one conversation together; retry for ever."""
        while sandbox.queue:
            path = sandbox.queue[0][0]
            batch = [sandbox.queue[0][1]]
            if path != "conversations":
                for other, body in sandbox.queue[1:]:
                    if other != path:
                        break
                    batch.append(body)
            data = batch[0] if path == "conversations" else b"[" + b",".join(batch) + b"]"
            if await self._post(sandbox, f"{sandbox.webhook_url.rstrip('/')}/{path}", data):
                del sandbox.queue[: len(batch)]
            else:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _post(self, sandbox: FakeSandbox, url: str, data: bytes) -> bool:
        if self._session is None:
            return False
        headers = {_KEY_HEADER: sandbox.key, "Content-Type": "application/json"}
        try:
            async with self._session.post(url, data=data, headers=headers) as response:
                return response.ok
        except (aiohttp.ClientError, OSError):
            return False


def _add_routes(app: web.Application, agent: FakeAgent) -> None:
    conversation = "/api/conversations/{id}"
    routes: list[tuple[str, str, Handler]] = [
        ("GET", "/alive", agent.get_alive),
        ("GET", "/server_info", agent.get_server_info),
        ("GET", _INIT_PATH, agent.get_init),
        ("POST", _INIT_PATH, agent.post_init),
        ("GET", "/api/file/home", agent.get_home),
        ("POST", "/api/file/upload", agent.post_upload),
        ("GET", "/api/file/download", agent.get_download),
        ("GET", "/api/git/changes", agent.get_git_changes),
        ("GET", "/api/git/diff", agent.get_git_diff),
        ("POST", "/api/bash/start_bash_command", agent.post_command),
        ("GET", "/api/bash/bash_events/search", agent.get_outputs),
        ("POST", "/api/bash/bash_commands/{command_id}/stop", agent.post_stop_command),
        ("POST", "/api/skills", agent.post_skills),
        ("POST", "/api/hooks", agent.post_hooks),
        ("POST", "/api/conversations", agent.post_conversation),
        ("GET", "/api/conversations", agent.get_conversations),
        ("GET", "/api/conversations/count", agent.count_conversations),
        ("GET", conversation, agent.get_conversation),
        ("DELETE", conversation, agent.delete_conversation),
        ("POST", f"{conversation}/events", agent.post_message),
        ("POST", f"{conversation}/run", agent.post_run),
        ("POST", f"{conversation}/pause", agent.post_pause),
        ("POST", f"{conversation}/interrupt", agent.post_interrupt),
        ("POST", f"{conversation}/events/respond_to_confirmation", agent.post_confirmation),
        ("POST", f"{conversation}/confirmation_policy", agent.post_policy),
        ("POST", f"{conversation}/secrets", agent.post_secrets),
        ("POST", f"{conversation}/switch_llm", agent.post_switch_llm),
        ("POST", f"{conversation}/switch_acp_model", agent.post_switch_acp_model),
        ("GET", f"{conversation}/events/search", agent.get_events),
        ("POST", "/api/profiles/{name}", agent.post_profile),
    ]
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)


def _init_state(sandbox: FakeSandbox) -> web.Response:
    if not sandbox.init_key:
        return _error(404, "Not Found")
    state = "dormant" if sandbox.is_dormant else "ready"
    return web.json_response({"state": state, "error": None})


def _conversation(request: web.Request) -> FakeConversation:
    hex_id = request.match_info["id"].replace("-", "")
    sandbox = request[_SANDBOX]
    if hex_id not in sandbox.conversations:
        text = msgspec.json.encode({"detail": f"Conversation not found: {hex_id}"}).decode()
        raise web.HTTPNotFound(text=text, content_type="application/json")
    return sandbox.conversations[hex_id]


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _done() -> web.Response:
    return web.json_response({"success": True})


def _error(status: int, detail: str) -> web.Response:
    return web.json_response({"detail": detail}, status=status)
