"""The client for agent servers in sandboxes, with the requests about conversations.

One AgentClient lives as long as the process; `client.at(url, key)` returns an AgentServer. The
requests about files, commands, git and skills are in `workspace`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from agentsvc.agentserver.responses import (
    AgentPage,
    ConversationInfo,
    Home,
    Init,
    InitState,
    ServerFault,
    ToolServerTest,
    decode,
    decode_conversation,
)
from agentsvc.agentserver.safe_connector import Confirm, SandboxConnector
from agentsvc.agentserver.workspace import PAGE_SIZE, WorkspaceCalls
from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    BodyTooLarge,
    NotFound,
    Secret,
    monotonic,
)

READ_SECONDS: Final = 30.0
"""The default time limit of a request that changes nothing."""

CHANGE_SECONDS: Final = 300.0
"""The default time limit of a request that changes a conversation: it waits for tool calls."""

_ENCODER = msgspec.json.Encoder()
_PAGES_MAX: Final = 10_000
"""The most requests for the events of one conversation: a million events, fewer large ones."""
_FIRST_POLL_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 5.0
_GATHER_SECONDS: Final = 0.04
"""How long the messages of a subscription are batched."""
_CLOSING_SECONDS: Final = 10.0
"""Extra time for the test of a tool server, to terminate its program."""


class AgentClient:
    """The HTTP session for all agent servers; open it once, close it at the end."""

    def __init__(
        self, *, read_seconds: float = READ_SECONDS, change_seconds: float = CHANGE_SECONDS
    ) -> None:
        self.read_seconds = read_seconds
        self.change_seconds = change_seconds
        self._session: aiohttp.ClientSession | None = None
        self.confirming: Callable[[str, Secret], Confirm | None] = lambda _url, _key: None
        """Returns the callback that confirms connections to a URL with a session key, or None."""

    async def open(self) -> None:
        """Open the session; needs a running event loop. Idempotent."""
        if self._session is not None:
            return
        # No limit: a request to a busy conversation may use its connection for minutes. No reuse:
        # agent servers close connections after an error or 5 s, and a POST on a closed one is lost.
        connector = SandboxConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_PROBE_SECONDS),
            trust_env=False,
            trace_configs=[_refusing_redirects()],
        )

    async def close(self) -> None:
        """Close all connections. Idempotent, also without `open`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def at(self, url: str, key: Secret, *, confirm: Confirm | None = None) -> "AgentServer":
        """Return the agent server at a URL, with its session key.

        `confirm` replaces the callback from `confirming`, for a server not known by that key yet.
        """
        if self._session is None:
            raise AgentUnavailable("The agent client is not open")
        return AgentServer(
            self._session,
            url,
            key,
            self.read_seconds,
            self.change_seconds,
            confirm=confirm or self.confirming(url, key),
        )


def _refusing_redirects() -> aiohttp.TraceConfig:
    """Return a trace config that refuses redirects: the only way for WebSocket requests."""

    async def refuse(*_about: object) -> None:
        raise aiohttp.ClientError("the response is a redirect")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


class AgentServer(WorkspaceCalls):
    """One agent server. Stateless; create one whenever it is needed."""

    # Server

    async def is_alive(self, *, time_limit: float | None = None) -> bool:
        """Return whether the agent server answers; raises no AgentsvcError."""
        limit = min(_PROBE_SECONDS, self._read_seconds)
        if time_limit is not None:
            limit = min(limit, max(time_limit, _FIRST_POLL_SECONDS))
        try:
            await self._call("GET", "/alive", time_limit=limit)
        except AgentsvcError:
            return False
        return True

    async def wait_ready(self, time_limit: float) -> None:
        """Wait until the server answers and accepts the session key.

        Raises AgentUnavailable at the time limit, and KeyRefused if the server does not accept the
        key, because it belongs to another sandbox.
        """
        end = monotonic() + time_limit
        pause = _FIRST_POLL_SECONDS
        while not await self.is_alive(time_limit=end - monotonic()):
            if monotonic() + pause >= end:
                raise AgentUnavailable(
                    f"The agent server did not answer within {time_limit:g} seconds"
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL_SECONDS)
        await self.home()

    async def server_info(self) -> dict[str, Any]:
        """Return the server's information about itself, such as `version` and `idle_time`."""
        return decode(dict[str, Any], await self._call("GET", "/server_info"))

    async def usable_tools(self) -> list[str] | None:
        """Return the names of the tools that the server offers, or None if it does not list them."""
        tools = (await self.server_info()).get("usable_tools")
        return [str(name) for name in tools] if isinstance(tools, list) and tools else None

    async def init_state(self) -> InitState:
        """Return whether the server waits for `initialize`; READY without support for that."""
        try:
            answer = await self._call("GET", "/api/init")
        except NotFound:
            return InitState.READY
        return decode(Init, answer).state

    async def initialize(self, identity: Mapping[str, Any], *, hide: Sequence[Secret]) -> None:
        """Assign a server that waits in the warm pool, authorized by the key it was started with.

        The values in `hide` are removed from errors.
        """
        await self._call(
            "POST",
            "/api/init",
            json=identity,
            hide=hide,
            headers={"X-Init-API-Key": self._key.reveal()},
        )

    async def home(self) -> str:
        """Return the absolute path of the home directory inside the sandbox."""
        return decode(Home, await self._call("GET", "/api/file/home")).home

    # Conversations

    async def start_conversation(
        self,
        body: bytes | Mapping[str, Any],
        *,
        hide: Sequence[Secret] = (),
    ) -> ConversationInfo:
        """Start a conversation; idempotent by its id: an existing one is returned unchanged.

        The values in `hide` are removed from errors. Raises AgentRefused if the server does not
        accept the body.
        """
        try:
            answer = await self._call(
                "POST",
                "/api/conversations",
                data=body if isinstance(body, bytes) else _ENCODER.encode(body),
                hide=hide,
                time_limit=self._change_seconds,
            )
        except ServerFault as exc:
            # An unknown tool name is a 500 there: do not retry.
            raise AgentRefused(exc.message, detail=exc.detail) from exc
        return decode_conversation(answer)

    async def find_conversation(self, conversation_id: str) -> ConversationInfo | None:
        """Return the info of a conversation, or None if the server does not have it."""
        try:
            answer = await self._call("GET", _path(conversation_id))
        except NotFound:
            return None
        return decode_conversation(answer)

    async def count_running(self, *, time_limit: float | None = None) -> int:
        """Return the number of conversations with a running agent."""
        path = "/api/conversations/count?status=running"
        return decode(int, await self._call("GET", path, time_limit=time_limit))

    async def send_message(
        self,
        conversation_id: str,
        content: Sequence[Mapping[str, Any]],
        *,
        run: bool,
        time_limit: float | None = None,
    ) -> None:
        """Add a message of the user and, with `run`, start the agent.

        A running agent reads the message in its run. Waits for a running tool call.
        """
        await self._change(
            "POST",
            _path(conversation_id, "events"),
            json={"role": "user", "content": list(content), "run": run},
            time_limit=time_limit,
        )

    async def run(self, conversation_id: str) -> None:
        """Start the agent, also without a new message; raises Conflict if it runs already."""
        await self._change("POST", _path(conversation_id, "run"))

    async def pause(self, conversation_id: str, *, time_limit: float | None = None) -> None:
        """Stop the agent after its current step, and wait for that."""
        await self._change("POST", _path(conversation_id, "pause"), time_limit=time_limit)

    async def interrupt(self, conversation_id: str) -> None:
        """Stop the agent immediately, in the middle of a step."""
        await self._call("POST", _path(conversation_id, "interrupt"))

    async def respond_to_confirmation(
        self, conversation_id: str, *, accept: bool, reason: str | None = None
    ) -> None:
        """Accept or reject the pending actions; after a rejection the agent is idle.

        Without pending actions, the agent runs.
        """
        order: dict[str, Any] = {"accept": accept}
        if reason is not None:
            order["reason"] = reason
        path = _path(conversation_id, "events/respond_to_confirmation")
        await self._change("POST", path, json=order)

    async def wait_for_earlier_changes(
        self, conversation_id: str, *, time_limit: float | None = None
    ) -> None:
        """Wait until the agent server has processed all earlier requests for a conversation.

        It processes the changes of a conversation in order, and each waits for running tool calls.
        Requests of disconnected clients are processed as well.
        """
        # An empty change is a barrier. The first one is answered after the server has read all
        # earlier requests, the second one after it has processed them.
        path = _path(conversation_id, "secrets")
        for _ in range(2):
            await self._change("POST", path, json={"secrets": {}}, time_limit=time_limit)

    async def switch_llm(
        self,
        conversation_id: str,
        llm: Mapping[str, Any],
        *,
        hide: Sequence[Secret] = (),
    ) -> None:
        """Switch a conversation to another language model."""
        path = _path(conversation_id, "switch_llm")
        await self._change("POST", path, json={"llm": dict(llm)}, hide=hide)

    async def switch_acp_model(self, conversation_id: str, model: str) -> None:
        """Switch the ACP agent of a conversation to another of its models."""
        path = _path(conversation_id, "switch_acp_model")
        await self._change("POST", path, json={"model": model})

    async def save_profile(
        self, name: str, llm: Mapping[str, Any], *, hide: Sequence[Secret] = ()
    ) -> None:
        """Save a language model as a named profile in the sandbox; overwrite an existing one."""
        path = f"/api/profiles/{quote(name, safe='')}"
        body = {"llm": dict(llm), "include_secrets": True}
        await self._change("POST", path, json=body, hide=hide)

    async def try_tool_server(
        self, name: str, server: Mapping[str, Any], *, time_limit: float
    ) -> str | None:
        """Return why a tool server (MCP) does not list its tools, or None if it does.

        A local program is run for the test. Raises NotFound if the agent server has no such API.
        """
        body = {"name": name, "server": dict(server), "timeout": time_limit}
        limit = time_limit + _CLOSING_SECONDS
        test = decode(
            ToolServerTest, await self._call("POST", "/api/mcp/test", json=body, time_limit=limit)
        )
        return None if test.ok else test.error

    async def delete_conversation(self, conversation_id: str) -> None:
        """Delete a conversation and its files; no-op if it does not exist."""
        with contextlib.suppress(NotFound):
            await self._change("DELETE", _path(conversation_id))

    async def newest_events(self, conversation_id: str, *, limit: int = PAGE_SIZE) -> list[bytes]:
        """Return at most `limit` stored events as raw JSON, newest first; raises NotFound."""
        query = urlencode({"sort_order": "TIMESTAMP_DESC", "limit": limit})
        page = decode(
            AgentPage, await self._call("GET", _path(conversation_id, f"events/search?{query}"))
        )
        return [bytes(item) for item in page.items]

    async def event_pages(
        self,
        conversation_id: str,
        *,
        since: str | None = None,
        first: str = "",
        time_limit: float | None = None,
    ) -> AsyncIterator[list[bytes]]:
        """Yield the stored events, oldest first, as raw JSON in lists of up to 100.

        `since` is a timestamp in the format of events; events of exactly that time are included.
        `first` is the id of the event to begin with; an unknown id means the beginning of the log.
        The time limit is for each page; a page that is too large is requested in smaller pages.
        Raises NotFound for an unknown conversation, and AgentRefused for endless pages.
        """
        query: dict[str, Any] = {"sort_order": "TIMESTAMP", "limit": PAGE_SIZE}
        if since is not None:
            query["timestamp__gte"] = since
        if first:
            query["page_id"] = first
        for _ in range(_PAGES_MAX):
            path = _path(conversation_id, "events/search?" + urlencode(query))
            try:
                page = decode(AgentPage, await self._call("GET", path, time_limit=time_limit))
            except AgentUnavailable as exc:
                if query["limit"] == 1 or not isinstance(exc.__cause__, BodyTooLarge):
                    raise
                query["limit"] //= 2
                continue
            query["limit"] = min(query["limit"] * 2, PAGE_SIZE)
            following = page.next_page_id
            if following and not 0 < len(page.items) <= PAGE_SIZE:
                break
            if page.items:
                yield [bytes(item) for item in page.items]
            if following is None:
                return
            if following == query.get("page_id"):
                break
            query["page_id"] = following
        raise AgentRefused("The agent server's pages of events do not end")

    def subscribe(self, conversation_id: str) -> AsyncIterator[list[bytes]]:
        """Yield batches of the events and streaming deltas of a conversation as they happen.

        Ends with the connection; raises AgentUnavailable if it cannot be opened.
        """
        path = f"/sockets/events/{quote(conversation_id, safe='')}"
        return self._listen(path, gather_seconds=_GATHER_SECONDS)


def _path(conversation_id: str, rest: str = "") -> str:
    path = f"/api/conversations/{quote(conversation_id, safe='')}"
    return f"{path}/{rest}" if rest else path
