"""The client for the agent servers inside sandboxes, and its calls about conversations.

One AgentClient lives as long as the process; `client.at(url, key)` gives the calls to one agent
server. What a call about files, commands, git or skills is, is in `workspace`.
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
"""The default deadline of a call that changes nothing."""

CHANGE_SECONDS: Final = 300.0
"""The default deadline of a call that changes a conversation: it waits while a tool runs."""

_ENCODER = msgspec.json.Encoder()
_PAGES_MAX: Final = 10_000
"""How many requests the events of one conversation may take: a million of them, or fewer large ones."""
_FIRST_POLL_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 5.0
_GATHER_SECONDS: Final = 0.04
"""How long what a subscription brings is gathered, to be passed on at once."""
_CLOSING_SECONDS: Final = 10.0
"""How much longer than asked the test of a tool server may take, which ends its program."""


class AgentClient:
    """The connections to all agent servers; open it once, close it at the end."""

    def __init__(
        self, *, read_seconds: float = READ_SECONDS, change_seconds: float = CHANGE_SECONDS
    ) -> None:
        self.read_seconds = read_seconds
        self.change_seconds = change_seconds
        self._session: aiohttp.ClientSession | None = None
        self.confirming: Callable[[str, Secret], Confirm | None] = lambda _url, _key: None
        """Returns what confirms connections to the agent server at a URL that has a key."""

    async def open(self) -> None:
        """Make the session; needs a running event loop. Opening twice is fine."""
        if self._session is not None:
            return
        # No limit: a call to a busy conversation may hold its connection for minutes. No reuse:
        # agent servers drop connections after a fault or 5 s, and a POST on such a one is lost.
        connector = SandboxConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_PROBE_SECONDS),
            trust_env=False,
            trace_configs=[_staying()],
        )

    async def close(self) -> None:
        """Close all connections. Closing twice, or without open, is fine."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def at(self, url: str, key: Secret, *, confirm: Confirm | None = None) -> "AgentServer":
        """Return the calls to the agent server at a URL, with its session key.

        Who knows the server by something else than that key says how to confirm connections.
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


def _staying() -> aiohttp.TraceConfig:
    """Return what ends a request that is sent elsewhere: a WebSocket's can be told so in no other way."""

    async def refuse(*_about: object) -> None:
        raise aiohttp.ClientError("the answer leads to somewhere else")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


class AgentServer(WorkspaceCalls):
    """The calls to one agent server. It holds no state; make one whenever it is needed."""

    # The server itself

    async def is_alive(self, *, time_limit: float | None = None) -> bool:
        """Say whether something answers like an agent server; never raises."""
        limit = min(_PROBE_SECONDS, self._read_seconds)
        if time_limit is not None:
            limit = min(limit, max(time_limit, _FIRST_POLL_SECONDS))
        try:
            await self._call("GET", "/alive", time_limit=limit)
        except AgentsvcError:
            return False
        return True

    async def wait_ready(self, time_limit: float) -> None:
        """Wait until the server answers and takes our key.

        Raises AgentUnavailable at the time limit, and AgentRefused if what answers there does
        not know the key: it is the server of another sandbox.
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
        """Return what the server says about itself, such as version and idle_time."""
        return decode(dict[str, Any], await self._call("GET", "/server_info"))

    async def usable_tools(self) -> list[str] | None:
        """Return the names of the tools an agent can be given, or None if the server says none."""
        tools = (await self.server_info()).get("usable_tools")
        return [str(name) for name in tools] if isinstance(tools, list) and tools else None

    async def init_state(self) -> InitState:
        """Say whether the server waits to be told for whom it is; one that never does is ready."""
        try:
            answer = await self._call("GET", "/api/init")
        except NotFound:
            return InitState.READY
        return decode(Init, answer).state

    async def initialize(self, identity: Mapping[str, Any], *, hide: Sequence[Secret]) -> None:
        """Tell a server for whom it is, with the key that it was started with in place of ours.

        The values in `hide` do not appear in an error.
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
        """Start a conversation; the same conversation id twice gives the first one, unchanged.

        The values in `hide` do not appear in an error. Raises AgentRefused when the server does
        not accept the body.
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
            # An unknown tool name is a 500 there; the same body will not do better next time.
            raise AgentRefused(exc.message, detail=exc.detail) from exc
        return decode_conversation(answer)

    async def find_conversation(self, conversation_id: str) -> ConversationInfo | None:
        """Return what the server knows about a conversation, or None if it has no such one."""
        try:
            answer = await self._call("GET", _path(conversation_id))
        except NotFound:
            return None
        return decode_conversation(answer)

    async def count_running(self, *, time_limit: float | None = None) -> int:
        """Return in how many conversations of the server an agent is at work."""
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
        """Add a message of the user and, with `run`, set the agent going.

        A running conversation takes the message into its run. Waits while a tool runs.
        """
        await self._change(
            "POST",
            _path(conversation_id, "events"),
            json={"role": "user", "content": list(content), "run": run},
            time_limit=time_limit,
        )

    async def run(self, conversation_id: str) -> None:
        """Set the agent going, also without a new message; raises Conflict if it runs already."""
        await self._change("POST", _path(conversation_id, "run"))

    async def pause(self, conversation_id: str, *, time_limit: float | None = None) -> None:
        """Stop the agent after its current step; waits for that step."""
        await self._change("POST", _path(conversation_id, "pause"), time_limit=time_limit)

    async def interrupt(self, conversation_id: str) -> None:
        """Stop the agent now, in the middle of a step."""
        await self._call("POST", _path(conversation_id, "interrupt"))

    async def respond_to_confirmation(
        self, conversation_id: str, *, accept: bool, reason: str | None = None
    ) -> None:
        """Let the pending actions happen or reject them; after a rejection the agent is idle.

        With nothing pending the agent simply runs.
        """
        order: dict[str, Any] = {"accept": accept}
        if reason is not None:
            order["reason"] = reason
        path = _path(conversation_id, "events/respond_to_confirmation")
        await self._change("POST", path, json=order)

    async def wait_for_earlier_changes(
        self, conversation_id: str, *, time_limit: float | None = None
    ) -> None:
        """Wait until the agent server has made every change that it was asked for before.

        It makes the changes of one conversation one after the other, and each waits while a tool
        runs. Those whose caller has gone meanwhile are made all the same.
        """
        # The first call, which changes nothing, is answered once it has read all that was sent to it
        # before, and the second one behind that.
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
        """Let the conversation go on with another language model."""
        path = _path(conversation_id, "switch_llm")
        await self._change("POST", path, json={"llm": dict(llm)}, hide=hide)

    async def switch_acp_model(self, conversation_id: str, model: str) -> None:
        """Let the other agent of a conversation go on with another of its models."""
        path = _path(conversation_id, "switch_acp_model")
        await self._change("POST", path, json={"model": model})

    async def save_profile(
        self, name: str, llm: Mapping[str, Any], *, hide: Sequence[Secret] = ()
    ) -> None:
        """Keep a language model under a name in the sandbox, over one of that name."""
        path = f"/api/profiles/{quote(name, safe='')}"
        body = {"llm": dict(llm), "include_secrets": True}
        await self._change("POST", path, json=body, hide=hide)

    async def try_tool_server(
        self, name: str, server: Mapping[str, Any], *, time_limit: float
    ) -> str | None:
        """Return why a tool server (MCP) does not list its tools, None if it does.

        One that is a program is run for it. Raises NotFound for a server that has no such call.
        """
        body = {"name": name, "server": dict(server), "timeout": time_limit}
        limit = time_limit + _CLOSING_SECONDS
        told = decode(
            ToolServerTest, await self._call("POST", "/api/mcp/test", json=body, time_limit=limit)
        )
        return None if told.ok else told.error

    async def delete_conversation(self, conversation_id: str) -> None:
        """Remove a conversation and its files; one that is not there is fine."""
        with contextlib.suppress(NotFound):
            await self._change("DELETE", _path(conversation_id))

    async def newest_events(self, conversation_id: str, *, limit: int = PAGE_SIZE) -> list[bytes]:
        """Return up to so many stored events as raw JSON, newest first; raises NotFound."""
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

        `since` is a timestamp as events carry it; events of exactly that time are included.
        `first` is the id of the event to begin with; an unknown one is the beginning of the log.
        The time limit is for each page; one that is too large is asked for again in parts.
        Raises NotFound for an unknown conversation, and AgentRefused for pages without an end.
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
        raise AgentRefused("The agent server's pages of events do not come to an end")

    def subscribe(self, conversation_id: str) -> AsyncIterator[list[bytes]]:
        """Yield the events and streaming deltas of a conversation as they happen, some at a time.

        Ends with the connection; raises AgentUnavailable where there is none.
        """
        path = f"/sockets/events/{quote(conversation_id, safe='')}"
        return self._listen(path, gather_seconds=_GATHER_SECONDS)


def _path(conversation_id: str, rest: str = "") -> str:
    path = f"/api/conversations/{quote(conversation_id, safe='')}"
    return f"{path}/{rest}" if rest else path
