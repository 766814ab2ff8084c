"""A language model that follows a script, behind the real OpenAI chat-completions wire format.

The model keeps no state between calls: its position in the script follows from the messages in
the request, namely from the number of its own turns since the last user message. So it can
be restarted at any time, and any number of conversations can use it concurrently.

A message that contains `[script:NAME]` selects a script by name. Otherwise the first message
of a conversation gets the default script, later ones get `follow_up`.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from agentsvc.base import Secret, new_id, now
from agentsvc.testing.listening import Listening

MODEL: Final = "scripted"
"""The name of the model in `GET /v1/models`; agents use it as `openai/scripted`."""

_MODEL: Final = {"id": MODEL, "object": "model", "created": 1_700_000_000, "owned_by": "agentsvc"}
_MARKER: Final = re.compile(r"\[script:([A-Za-z0-9_-]+)\]")
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_PIECE_CHARS: Final = 24
_ERRORS: Final = {
    400: ("The request is not valid", "invalid_request_error", None),
    401: ("Incorrect API key provided", "invalid_request_error", "invalid_api_key"),
    404: ("The model does not exist", "invalid_request_error", "model_not_found"),
    429: ("Rate limit reached for requests", "requests", "rate_limit_exceeded"),
    500: ("The server had an error while processing your request", "server_error", None),
    503: ("The engine is currently overloaded", "server_error", None),
}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the model."""

    tool: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of the model; a `status` other than 200 makes it an error."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    prompt_tokens: int = 1000
    completion_tokens: int = 100
    delay_seconds: float = 0.0
    piece_seconds: float = 0.0
    """The wait before each chunk of a stream."""
    status: int = 200


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the model, and the position of the conversation in the script."""

    step: int
    user_text: str
    messages: list[dict[str, Any]]
    tools: dict[str, dict[str, Any]]
    request: dict[str, Any]

    @property
    def last_output(self) -> str:
        """The text of the last tool result, or "" if there is none."""
        for message in reversed(self.messages):
            if message.get("role") == "tool":
                return _text_of(message)
        return ""


type Step = Reply | Callable[[Turn], Reply]
type Script = Sequence[Step]


def say(text: str, **extras: Any) -> Reply:
    """Answer with text only, which ends the agent's run."""
    return Reply(text=text, **extras)


def call(tool: str, /, *, text: str = "", **arguments: Any) -> Reply:
    """Call one tool; `text` accompanies the call."""
    return Reply(text=text, calls=(ToolCall(tool=tool, arguments=arguments),))


def calls(*several: ToolCall, text: str = "") -> Reply:
    """Call several tools in one turn."""
    return Reply(text=text, calls=several)


def finish(message: str) -> Reply:
    """Finish the task with a message."""
    return call("finish", message=message)


def fail(status: int) -> Reply:
    """Answer with an HTTP error, each time the agent requests this turn."""
    return Reply(status=status)


DEMO: Final[Script] = (
    call(
        "terminal",
        text="I look around first.",
        command='echo "Hello from $(uname -s), it is $(date +%H:%M)" && pwd',
    ),
    lambda turn: call(
        "file_editor",
        text="Now I write the file.",
        command="create",
        path=f"{_last_path(turn.last_output)}/hello.py",
        file_text='"""Written by an agent in a sandbox."""\n\nprint("Hello, world!")\n',
    ),
    call("terminal", text="Does it run?", command="python3 hello.py || cat hello.py"),
    finish("I wrote `hello.py` and ran it."),
)
"""The default script: a command, a file, a command, the end."""


FOLLOW_UP: Final[Script] = (finish("Done."),)
"""The default script for later messages."""


class Playbook(msgspec.Struct, frozen=True):
    """The scripts and the rule by which messages select them."""

    script: Script = DEMO
    scripts: Mapping[str, Script] = {}
    follow_up: Script = FOLLOW_UP

    def pick(self, user_text: str, *, is_first: bool) -> Script:
        """Return the script that a message names, or the default for its position."""
        named = _MARKER.search(user_text)
        if named is not None:
            return self.scripts.get(named[1], (say(f"There is no script {named[1]}."),))
        return self.script if is_first else self.follow_up

    def reply(self, turn: Turn, *, is_first: bool) -> Reply:
        """Return the model's next turn; after the end of a script it finishes."""
        script = self.pick(turn.user_text, is_first=is_first)
        if turn.step >= len(script):
            return finish("Done.") if "finish" in turn.tools else say("Done.")
        step = script[turn.step]
        return step if isinstance(step, Reply) else step(turn)


class ScriptedModel(Listening):
    """An OpenAI-compatible server on loopback that plays scripts.

    Use it as an async context manager, or call start and stop. `requests` holds the bodies of all
    completion requests, oldest first.
    """

    def __init__(
        self,
        script: Script = DEMO,
        *,
        scripts: Mapping[str, Script] | None = None,
        follow_up: Script = FOLLOW_UP,
        key: Secret | None = None,
        title: str = "✨ A scripted conversation",
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.playbook = Playbook(script, scripts or {}, follow_up)
        self.key = key or Secret("scripted-model-key")
        self.title = title
        self.requests: list[dict[str, Any]] = []
        self.refused = 0
        self._host = host
        self._port = port
        self._failures: list[int] = []

    @property
    def url(self) -> str:
        """Return the base URL for a model setting, including `/v1`."""
        return f"http://{self._host}:{self._port}/v1"

    async def start(self) -> None:
        """Start listening; the port is chosen by the system unless one was given."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._admit])
        app.router.add_post("/v1/chat/completions", self._post_completion)
        app.router.add_get("/v1/models", self._get_models)
        app.router.add_get("/v1/models/{model}", self._get_model)
        await self._listen(app)

    def fail_next(self, status: int, *, times: int = 1) -> None:
        """Answer the next completion requests with this HTTP error."""
        self._failures += [status] * times

    # Handlers

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        is_allowed = scheme == "Bearer" and Secret(key) == self.key
        return await handler(request) if is_allowed else self._refuse(401)

    async def _get_models(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [_MODEL]})

    async def _get_model(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["model"] != MODEL:
            return self._refuse(404)
        return web.json_response(_MODEL)

    async def _post_completion(self, request: web.Request) -> web.StreamResponse:
        if self._failures:
            return self._refuse(self._failures.pop(0))
        try:
            body = msgspec.json.decode(await request.read(), type=dict[str, Any])
            turn = _to_turn(body)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as exc:
            return self._refuse(400, str(exc))
        self.requests.append(body)
        reply = self._choose(turn)
        if reply.delay_seconds:
            await asyncio.sleep(reply.delay_seconds)
        if reply.status != 200:  # noqa: PLR2004  # an HTTP status reads best as a number
            return self._refuse(reply.status)
        answer = self._complete(turn, reply)
        if body.get("stream"):
            return await _stream(request, body, answer, reply.piece_seconds)
        return web.json_response(answer)

    def _refuse(self, status: int, message: str = "") -> web.Response:
        self.refused += 1
        text, kind, code = _ERRORS.get(status, (f"Error {status}", "server_error", None))
        error = {"message": message or text, "type": kind, "param": None, "code": code}
        return web.json_response({"error": error}, status=status)

    # The script

    def _choose(self, turn: Turn) -> Reply:
        if not turn.tools:
            return self._help(turn)
        user_messages = [message for message in turn.messages if message.get("role") == "user"]
        return self.playbook.reply(turn, is_first=len(user_messages) <= 1)

    def _help(self, turn: Turn) -> Reply:
        """Answer auxiliary requests of agents, which have no tools: titles and summaries."""
        system = "".join(_text_of(one) for one in turn.messages if one.get("role") == "system")
        if "title" in system or "Generate a title" in turn.user_text:
            return say(self.title, prompt_tokens=0, completion_tokens=0)
        return say("A summary of what happened so far.", prompt_tokens=0, completion_tokens=0)

    def _complete(self, turn: Turn, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": reply.text or None,
            "refusal": None,
        }
        if reply.calls:
            message["tool_calls"] = [_to_wire(one, turn.tools) for one in reply.calls]
        prompt, completion = reply.prompt_tokens, reply.completion_tokens
        return {
            "id": f"chatcmpl-{new_id()}",
            "object": "chat.completion",
            "created": int(now().timestamp()),
            "model": turn.request["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "logprobs": None,
                    "finish_reason": "tool_calls" if reply.calls else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
                "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
            },
            "system_fingerprint": "fp_scripted",
        }


# Wire format


def _to_turn(body: dict[str, Any]) -> Turn:
    messages = body.get("messages")
    if not (isinstance(messages, list) and messages and isinstance(body.get("model"), str)):
        raise ValueError("you must provide a model parameter and a non-empty array of messages")
    _check_tool_calls(messages)
    step = 0
    user_text = ""
    for message in reversed(messages):
        if message["role"] == "user":
            user_text = _text_of(message)
            break
        step += message["role"] == "assistant"
    tools = {one["function"]["name"]: one["function"] for one in body.get("tools") or ()}
    return Turn(step=step, user_text=user_text, messages=messages, tools=tools, request=body)


def _check_tool_calls(messages: list[dict[str, Any]]) -> None:
    """Require, as the real server does, that each tool call is followed by its result."""
    missing: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in missing:
                raise ValueError("messages with role 'tool' must follow a message with tool_calls")
            missing.remove(message["tool_call_id"])
            continue
        if missing:
            break
        missing = {one["id"] for one in message.get("tool_calls") or ()}
    if missing:
        raise ValueError("An assistant message with 'tool_calls' must be followed by tool messages")


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or ())


def _last_path(output: str) -> str:
    paths = re.findall(r"^/\S*", output, re.MULTILINE)
    return str(paths[0]).rstrip("/") if paths else "/tmp"  # noqa: S108  # a fallback for a demo


def _to_wire(one: ToolCall, tools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the call with the parameters that the agent adds to its tools."""
    schema = tools.get(one.tool, {}).get("parameters", {})
    known = schema.get("properties", {})
    arguments = dict(one.arguments)
    if "security_risk" in known:
        arguments.setdefault("security_risk", "LOW")
    if "summary" in known:
        arguments.setdefault("summary", f"Use {one.tool}")
    return {
        "id": f"call_{new_id()[:24]}",
        "type": "function",
        "function": {"name": one.tool, "arguments": msgspec.json.encode(arguments).decode()},
    }


async def _stream(
    request: web.Request, body: Mapping[str, Any], answer: Mapping[str, Any], piece_seconds: float
) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    await response.prepare(request)
    options = body.get("stream_options") or {}
    for chunk in _chunks(answer, with_usage=bool(options.get("include_usage"))):
        await asyncio.sleep(piece_seconds)
        await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _chunks(answer: Mapping[str, Any], *, with_usage: bool) -> list[dict[str, Any]]:
    """Split the response into the chunks of a stream."""
    choice = answer["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": piece} for piece in _pieces(message["content"] or "")]
    for index, one in enumerate(message.get("tool_calls", ())):
        function = {"name": one["function"]["name"], "arguments": ""}
        head = {"index": index, "id": one["id"], "type": "function", "function": function}
        deltas.append({"tool_calls": [head]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in _pieces(one["function"]["arguments"])
        ]
    shared = {key: answer[key] for key in ("id", "created", "model", "system_fingerprint")}
    shared["object"] = "chat.completion.chunk"
    chunks = [_chunk(shared, delta, None) for delta in deltas]
    chunks.append(_chunk(shared, {}, choice["finish_reason"]))
    if with_usage:
        chunks.append({**shared, "choices": [], "usage": answer["usage"]})
    return chunks


def _chunk(
    shared: Mapping[str, Any], delta: Mapping[str, Any], finish_reason: str | None
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**shared, "choices": [choice]}


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS)]
