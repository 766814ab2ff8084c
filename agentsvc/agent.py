"""The HTTP client for the agent server inside a sandbox: the only outbound HTTP of the core.

One AgentClient lives as long as the process; `client.at(url, key)` gives the calls to one agent
server. Every call has a deadline and ends in a value or in one of four errors: AgentUnavailable
(no answer, or not able to answer now), AgentRefused (it answered and said no), NotFound, Conflict.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import yarl

from agentsvc.agent_answers import (
    BASH_PAGE,
    GIT_CHANGES,
    GIT_DIFF,
    HOME,
    HOOKS,
    OBJECT,
    PAGE,
    SKILLS,
    STARTED,
    CommandResult,
    ConversationInfo,
    ConversationStats,
    GitChange,
    GitDiff,
    Metrics,
    Output,
    ServerFault,
    TokenUsage,
    decode,
    decode_conversation,
    to_error,
    to_git_error,
)
from agentsvc.errors import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    BodyTooLarge,
    NotFound,
)
from agentsvc.values import Secret, monotonic

__all__ = [
    "AgentClient",
    "AgentServer",
    "CommandResult",
    "ConversationInfo",
    "ConversationStats",
    "GitChange",
    "GitDiff",
    "Metrics",
    "TokenUsage",
    "decode_conversation",
]

READ_SECONDS: Final = 30.0
"""The default deadline of a call that changes nothing."""

CHANGE_SECONDS: Final = 300.0
"""The default deadline of a call that changes a conversation: it waits while a tool runs."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
PAGE_SIZE: Final = 100

_ENCODER = msgspec.json.Encoder()
_FIRST_POLL_SECONDS: Final = 0.05
_LAST_POLL_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 5.0


class AgentClient:
    """The connections to all agent servers; open it once, close it at the end."""

    def __init__(
        self, *, read_seconds: float = READ_SECONDS, change_seconds: float = CHANGE_SECONDS
    ) -> None:
        self.read_seconds = read_seconds
        self.change_seconds = change_seconds
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; needs a running event loop. Opening twice is fine."""
        if self._session is not None:
            return
        # No limit: a call to a busy conversation may hold its connection for minutes. No reuse:
        # agent servers drop connections after a fault or 5 s, and a POST on such a one is lost.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_PROBE_SECONDS),
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections. Closing twice, or without open, is fine."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def at(self, url: str, key: Secret) -> "AgentServer":
        """Return the calls to the agent server at a URL, with its session key."""
        if self._session is None:
            raise AgentUnavailable("The agent client is not open")
        return AgentServer(self._session, url, key, self.read_seconds, self.change_seconds)


class AgentServer:
    """The calls to one agent server. It holds no state; make one whenever it is needed."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        key: Secret,
        read_seconds: float,
        change_seconds: float,
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._key = key
        self._read_seconds = read_seconds
        self._change_seconds = change_seconds

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
        return decode(OBJECT, await self._call("GET", "/server_info"))

    async def usable_tools(self) -> list[str] | None:
        """Return the names of the tools an agent can be given, or None if the server says none."""
        tools = (await self.server_info()).get("usable_tools")
        return [str(name) for name in tools] if isinstance(tools, list) and tools else None

    async def home(self) -> str:
        """Return the absolute path of the home directory inside the sandbox."""
        return decode(HOME, await self._call("GET", "/api/file/home")).home

    # Files and commands

    async def upload(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        time_limit: float | None = None,
    ) -> None:
        """Write a file at an absolute path; missing parent directories are made.

        What comes in parts is sent in parts; if they break off, no file is written.
        """
        form = aiohttp.FormData()
        form.add_field("file", data, filename="file", content_type="application/octet-stream")
        await self._call(
            "POST",
            "/api/file/upload?" + urlencode({"path": path}),
            data=form,
            time_limit=time_limit or self._change_seconds,
        )

    async def download(self, path: str, *, time_limit: float | None = None) -> bytes:
        """Return the bytes of a file at an absolute path; raises NotFound."""
        return await self._call(
            "GET",
            "/api/file/download?" + urlencode({"path": path}),
            time_limit=time_limit or self._change_seconds,
        )

    async def run_command(
        self, command: str, *, cwd: str | None = None, time_limit: float
    ) -> CommandResult:
        """Run a shell command in the sandbox and wait for its end.

        At the time limit the command and its process group are stopped and the result says
        `timed_out`. A command that fails is a result, not an error.
        """
        order: dict[str, Any] = {"command": command, "timeout": max(1, math.ceil(time_limit))}
        if cwd is not None:
            order["cwd"] = cwd
        end = monotonic() + time_limit
        started = decode(
            STARTED,
            await self._call("POST", "/api/bash/start_bash_command", json=order),
        )
        return await self._follow_command(started.id, end)

    async def _follow_command(self, command_id: str, end: float) -> CommandResult:
        output = Output()
        pause = _FIRST_POLL_SECONDS
        while True:
            await self._read_output(command_id, output)
            if output.exit_code is not None:
                return output.result(timed_out=monotonic() >= end and output.exit_code == -1)
            if monotonic() >= end:
                await self._stop_command(command_id)
                await self._read_output(command_id, output)
                return output.result(timed_out=True)
            await asyncio.sleep(min(pause, max(0.0, end - monotonic())))
            pause = min(pause * 1.5, _LAST_POLL_SECONDS)

    async def _read_output(self, command_id: str, output: "Output") -> None:
        query: dict[str, Any] = {
            "command_id__eq": command_id,
            "kind__eq": "BashOutput",
            "order__gt": output.last_order,
            "limit": PAGE_SIZE,
        }
        while True:
            page = decode(
                BASH_PAGE,
                await self._call("GET", "/api/bash/bash_events/search?" + urlencode(query)),
            )
            for part in page.items:
                output.add(part)
            if page.next_page_id is None:
                return
            query["page_id"] = page.next_page_id

    async def _stop_command(self, command_id: str) -> None:
        # It may have ended by itself in this moment.
        with contextlib.suppress(NotFound):
            await self._call("POST", f"/api/bash/bash_commands/{quote(command_id)}/stop")

    # Git

    async def git_changes(
        self, path: str, *, ref: str | None = None, time_limit: float | None = None
    ) -> list[GitChange]:
        """Return which files below a directory differ from a ref, or else from the remote branch.

        Where there is no repository there are no changes. Raises BadRequest for an unknown ref.
        """
        answer = await self._ask_git("changes", path, ref, time_limit)
        return decode(GIT_CHANGES, answer)

    async def git_diff(
        self, path: str, *, ref: str | None = None, time_limit: float | None = None
    ) -> GitDiff:
        """Return a file, by its absolute path, as it is and as it is in a ref.

        Raises BadRequest for one that is in neither, for one of more than 1 MiB and for an
        unknown ref.
        """
        return decode(GIT_DIFF, await self._ask_git("diff", path, ref, time_limit))

    async def _ask_git(
        self, what: str, path: str, ref: str | None, time_limit: float | None
    ) -> bytes:
        query = {"path": path} if ref is None else {"path": path, "ref": ref}
        return await self._call(
            "GET",
            f"/api/git/{what}?" + urlencode(query),
            explain=to_git_error,
            time_limit=time_limit,
        )

    # What a project brings along

    async def load_skills(
        self,
        project_dir: str,
        *,
        load_public: bool = False,
        load_user: bool = True,
        load_project: bool = True,
        exposed_urls: Sequence[Mapping[str, Any]] = (),
        time_limit: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return the skills the agent server finds for a project directory.

        Only `load_public` makes the sandbox use the network.
        """
        order = {
            "load_public": load_public,
            "load_user": load_user,
            "load_project": load_project,
            "load_org": False,
            "project_dir": project_dir,
            "sandbox_config": {"exposed_urls": list(exposed_urls)} if exposed_urls else None,
        }
        answer = await self._call("POST", "/api/skills", json=order, time_limit=time_limit)
        return decode(SKILLS, answer).skills

    async def load_hooks(
        self, project_dir: str, *, time_limit: float | None = None
    ) -> dict[str, Any] | None:
        """Return the hook configuration of a project directory, or None if it has none."""
        answer = await self._call(
            "POST", "/api/hooks", json={"project_dir": project_dir}, time_limit=time_limit
        )
        return decode(HOOKS, answer).hook_config

    # Conversations

    async def start_conversation(
        self,
        body: bytes | Mapping[str, Any],
        *,
        hide: Sequence[Secret] = (),
        time_limit: float | None = None,
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
                time_limit=time_limit or self._change_seconds,
            )
        except ServerFault as exc:
            # An unknown tool name is a 500 there; the same body will not do better next time.
            raise AgentRefused(exc.message, detail=exc.detail) from exc
        return decode_conversation(answer)

    async def find_conversation(
        self, conversation_id: str, *, time_limit: float | None = None
    ) -> ConversationInfo | None:
        """Return what the server knows about a conversation, or None if it has no such one."""
        try:
            answer = await self._call("GET", _path(conversation_id), time_limit=time_limit)
        except NotFound:
            return None
        return decode_conversation(answer)

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

    async def run(self, conversation_id: str, *, time_limit: float | None = None) -> None:
        """Set the agent going, also without a new message; raises Conflict if it runs already."""
        await self._change("POST", _path(conversation_id, "run"), time_limit=time_limit)

    async def pause(self, conversation_id: str, *, time_limit: float | None = None) -> None:
        """Stop the agent after its current step; waits for that step."""
        await self._change("POST", _path(conversation_id, "pause"), time_limit=time_limit)

    async def interrupt(self, conversation_id: str, *, time_limit: float | None = None) -> None:
        """Stop the agent now, in the middle of a step."""
        await self._change(
            "POST",
            _path(conversation_id, "interrupt"),
            time_limit=time_limit or self._read_seconds,
        )

    async def respond_to_confirmation(
        self,
        conversation_id: str,
        *,
        accept: bool,
        reason: str | None = None,
        time_limit: float | None = None,
    ) -> None:
        """Let the pending actions happen or reject them; after a rejection the agent is idle.

        With nothing pending the agent simply runs.
        """
        order: dict[str, Any] = {"accept": accept}
        if reason is not None:
            order["reason"] = reason
        await self._change(
            "POST",
            _path(conversation_id, "events/respond_to_confirmation"),
            json=order,
            time_limit=time_limit,
        )

    async def set_title(
        self, conversation_id: str, title: str, *, time_limit: float | None = None
    ) -> None:
        """Give the conversation a title of 1 to 200 characters."""
        await self._change(
            "PATCH", _path(conversation_id), json={"title": title}, time_limit=time_limit
        )

    async def set_confirmation_policy(
        self,
        conversation_id: str,
        policy: Mapping[str, Any],
        *,
        time_limit: float | None = None,
    ) -> None:
        """Change when the agent asks before it acts."""
        await self._change(
            "POST",
            _path(conversation_id, "confirmation_policy"),
            json={"policy": dict(policy)},
            time_limit=time_limit,
        )

    async def set_secrets(
        self,
        conversation_id: str,
        secrets: Mapping[str, Any],
        *,
        hide: Sequence[Secret] = (),
        time_limit: float | None = None,
    ) -> None:
        """Merge secrets into those of a conversation."""
        await self._call(
            "POST",
            _path(conversation_id, "secrets"),
            json={"secrets": dict(secrets)},
            hide=hide,
            time_limit=time_limit or self._change_seconds,
        )

    async def switch_llm(
        self,
        conversation_id: str,
        llm: Mapping[str, Any],
        *,
        hide: Sequence[Secret] = (),
    ) -> None:
        """Let the conversation go on with another language model."""
        path = _path(conversation_id, "switch_llm")
        limit = self._change_seconds
        await self._call("POST", path, json={"llm": dict(llm)}, hide=hide, time_limit=limit)

    async def save_profile(
        self, name: str, llm: Mapping[str, Any], *, hide: Sequence[Secret] = ()
    ) -> None:
        """Keep a language model under a name in the sandbox, over one of that name."""
        path = f"/api/profiles/{quote(name, safe='')}"
        body = {"llm": dict(llm), "include_secrets": True}
        await self._call("POST", path, json=body, hide=hide, time_limit=self._change_seconds)

    async def delete_conversation(
        self, conversation_id: str, *, time_limit: float | None = None
    ) -> None:
        """Remove a conversation and its files; one that is not there is fine."""
        with contextlib.suppress(NotFound):
            await self._change("DELETE", _path(conversation_id), time_limit=time_limit)

    async def event_pages(
        self,
        conversation_id: str,
        *,
        since: str | None = None,
        time_limit: float | None = None,
    ) -> AsyncIterator[list[bytes]]:
        """Yield the stored events, oldest first, as raw JSON in lists of up to 100.

        `since` is a timestamp as events carry it; events of exactly that time are included.
        The time limit is for each page; one that is too large is asked for again in parts.
        Raises NotFound for an unknown conversation.
        """
        query: dict[str, Any] = {"sort_order": "TIMESTAMP", "limit": PAGE_SIZE}
        if since is not None:
            query["timestamp__gte"] = since
        while True:
            path = _path(conversation_id, "events/search?" + urlencode(query))
            try:
                page = decode(PAGE, await self._call("GET", path, time_limit=time_limit))
            except AgentUnavailable as exc:
                if query["limit"] == 1 or not isinstance(exc.__cause__, BodyTooLarge):
                    raise
                query["limit"] //= 2
                continue
            query["limit"] = min(query["limit"] * 2, PAGE_SIZE)
            if page.items:
                yield [bytes(item) for item in page.items]
            if page.next_page_id is None:
                return
            query["page_id"] = page.next_page_id

    # How a call is made

    async def _change(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        time_limit: float | None = None,
    ) -> None:
        await self._call(method, path, json=json, time_limit=time_limit or self._change_seconds)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        data: bytes | aiohttp.FormData | None = None,
        hide: Sequence[Secret] = (),
        explain: Callable[[int, bytes, str, Sequence[Secret]], AgentsvcError] = to_error,
        time_limit: float | None = None,
    ) -> bytes:
        limit = time_limit or self._read_seconds
        headers = {"X-Session-API-Key": self._key.reveal()}
        if json is not None:
            data = _ENCODER.encode(json)
        if isinstance(data, bytes):
            headers["Content-Type"] = "application/json"
        where = f"{method} {path.partition('?')[0]}"
        try:
            async with (
                asyncio.timeout(limit),
                self._session.request(
                    method,
                    yarl.URL(self.url + path, encoded=True),
                    headers=headers,
                    data=data,
                    # A sandbox must not send us, with its key, to somewhere else.
                    allow_redirects=False,
                ) as response,
            ):
                body = await _read_bounded(response)
        except TimeoutError as exc:
            raise AgentUnavailable(
                f"The agent server did not answer within {limit:g} seconds", detail=where
            ) from exc
        except (aiohttp.ClientError, OSError, ValueError, BodyTooLarge) as exc:
            raise AgentUnavailable(
                "The agent server does not answer", detail=f"{where}: {type(exc).__name__}: {exc}"
            ) from exc
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise explain(response.status, body, where, (self._key, *hide))
        return body


def _path(conversation_id: str, rest: str = "") -> str:
    path = f"/api/conversations/{quote(conversation_id, safe='')}"
    return f"{path}/{rest}" if rest else path


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            response.close()
            raise BodyTooLarge(f"answer of more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
