"""Converts events to what a given version of the Python SDK can read. Pure.

Models of the SDK forbid fields and kinds that they do not know, so that one new field in one event
makes a whole conversation illegible to an older client. Every version since 1.54 reads what the
agent servers of today write. A client says at the end of its key which version it has, as in
`asvc_…~sdk-1.30`; clients of several years cannot say it anywhere else.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated, Final, cast

import msgspec
import yarl
from aiohttp import hdrs, web
from multidict import istr

from agentsvc.base import decode_or_none

type Version = tuple[int, int]

OLDEST: Final[Version] = (1, 21)
"""The oldest that was tried, and what any older one is taken for."""
HTTP_CLIENT: Final = "python-httpx/"
"""How the User-Agent of the SDK and of the command line begins; they do not name themselves."""
_IN_QUERY = re.compile(
    r"([?&]session_api_key=[^&#?]*?)(?:~|%7[Ee])sdk-([0-9]{1,3})\.([0-9]{1,3})(?=[&#]|\Z)"
)
_VERSION = re.compile(r"\A([0-9]{1,3})\.([0-9]{1,3})\Z")
_MARK: Final = "~sdk-"
_KEY_HEADERS: Final = (istr("X-Session-API-Key"), hdrs.AUTHORIZATION, istr("X-Access-Token"))
_MAX_VALUES: Final = 300_000
"""How many members an event may have, and a page a few times as many values: more is not taken apart."""
_ANY: Final = ""
_PROMPT: Final = "SystemPromptEvent"


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What came into the SDK's models with a version."""

    version: Version
    kind: str = _ANY
    """A kind of events; all of them where only fields came."""
    fields: frozenset[str] = frozenset()
    """Fields that came to the kind; where there are none, the kind itself came."""


ADDED: Final = (
    Added(version=(1, 23), kind="InterruptEvent"),
    Added(version=(1, 31), fields=frozenset({"parent_id"})),
    Added(version=(1, 34), kind="ObservationEvent", fields=frozenset({"extended_content"})),
    Added(version=(1, 40), kind="AgentErrorEvent", fields=frozenset({"classification"})),
    Added(version=(1, 40), kind="ConversationErrorEvent", fields=frozenset({"classification"})),
    Added(version=(1, 54), kind="SecurityAnalysisEvent"),
)
"""All that was added to events since the oldest version."""
COMPLETE: Final[Version] = max(added.version for added in ADDED)
"""The first version that reads everything."""


_IMPORTS_TOOLS: Final[Version] = (1, 50)
"""From here on clients import the tools of a conversation that they take part in."""
_IMPORTED: Final = frozenset(
    {
        "FileEditorTool",
        "FinishTool",
        "MCPToolDefinition",
        "TaskToolSet",
        "TaskTool",
        "TaskTrackerTool",
        "TerminalTool",
        "ThinkTool",
    }
)
"""The tools that programs of all versions know, whatever they import of `openhands.tools`."""


class EventReader:
    """Puts events into the form that one version reads; what it leaves out is nowhere changed."""

    def __init__(self, version: Version) -> None:
        self._imports_tools = version >= _IMPORTS_TOOLS
        self._unknown = {one.kind for one in ADDED if one.version > version and not one.fields}
        self._fields: dict[str, frozenset[str]] = {}
        for one in ADDED:
            if one.version > version and one.fields:
                known = self._fields.get(one.kind, frozenset())
                self._fields[one.kind] = known | one.fields

    def event(self, body: bytes) -> bytes | None:
        """Return one event, None for one of a kind the version does not know.

        What is no event is returned as it is, and so is one with more in it than any has.
        """
        # Each member has a colon. Texts have fewer of these than commas, of which a table has any number.
        if body.count(b":") > _MAX_VALUES:
            return body
        try:
            members = _MEMBERS.decode(body)
            kind = _KIND.decode(members["kind"])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
            return body
        if kind in self._unknown:
            return None
        left_out = self._fields.get(_ANY, frozenset()) | self._fields.get(kind, frozenset())
        shown = {name: value for name, value in members.items() if name not in left_out}
        if kind == _PROMPT and not self._imports_tools:
            shown = _with_known_tools(shown)
        return body if shown == members else _encode(shown)

    def events(self, bodies: Iterable[bytes]) -> list[bytes]:
        """Return those of some events that the version knows."""
        read = (self.event(body) for body in bodies)
        return [body for body in read if body is not None]

    def answer(self, body: bytes) -> bytes:
        """Return an answer of an agent server: a page of events, a list with gaps, or one event.

        Anything else is returned as it is, and so is what has more in it than any answer.
        """
        if body.count(b",") > 4 * _MAX_VALUES:
            return body
        try:
            if body.lstrip()[:1] == b"[":
                return _encode([self._or_null(bytes(item)) for item in _LIST.decode(body)])
            members = _MEMBERS.decode(body)
            if "items" not in members:
                return bytes(self._or_null(body))
            items = self.events(bytes(item) for item in _LIST.decode(members["items"]))
            shown = _encode([msgspec.Raw(item) for item in items])
            return _encode(members | {"items": msgspec.Raw(shown)})
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return body

    def _or_null(self, body: bytes) -> msgspec.Raw:
        read = self.event(body)
        return msgspec.Raw(b"null" if read is None else read)


class _Llm(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that the SDK always writes: the first two have always been there."""

    usage_id: msgspec.Raw
    drop_params: msgspec.Raw
    auth_type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    api_mode: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    provider_connection_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stream_idle_timeout: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Agent(msgspec.Struct, frozen=True, kw_only=True):
    llm: _Llm
    system_prompt_filename: msgspec.Raw
    persona: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    agent: _Agent
    tool_module_qualnames: msgspec.Raw
    agent_definitions: msgspec.Raw


@lru_cache(maxsize=64)
def reader_of(version: Version | None) -> EventReader | None:
    """Return what puts events into the form of a version, None where they stay as they are."""
    return None if version is None or version >= COMPLETE else EventReader(version)


def version_of_start(body: bytes) -> Version | None:
    """Return the version whose SDK wrote this start of a conversation, by what it does not say.

    The SDK writes every field it has. The oldest version with just these fields is returned, and
    None for a body that it did not write, or that may be one of a version that reads everything.
    """
    start = decode_or_none(body, _Start)
    if start is None:
        return None
    agent = start.agent
    steps: Sequence[tuple[Version, object]] = (
        (OLDEST, agent.llm.auth_type),
        ((1, 30), agent.llm.api_mode),
        ((1, 39), agent.llm.provider_connection_id),
        ((1, 45), agent.llm.stream_idle_timeout),
        ((1, 50), agent.persona),
    )
    return next((version for version, field in steps if field is msgspec.UNSET), None)


def version_of_login(user_agent: str) -> Version | None:
    """Return the version of a program that logs in without a browser, None for one of today.

    The command line `openhands` is the one that does so with this library, and its newest version
    has the oldest SDK.
    """
    return OLDEST if user_agent.startswith(HTTP_CLIENT) else None


def parse_version(text: str) -> Version | None:
    """Return the version that is written as `1.30`, None for what is none."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def write_version(version: Version) -> str:
    """Return a version as it is written, as in `1.30`."""
    return f"{version[0]}.{version[1]}"


def mark(key: str, version: Version | None) -> str:
    """Return a key that says which version its client has; one without a version as it is."""
    return key if version is None else f"{key}{_MARK}{write_version(version)}"


def unmark(key: str) -> tuple[str, Version | None]:
    """Return a key without what it says of its client, and that."""
    plain, _, said = key.rpartition(_MARK)
    version = parse_version(said)
    return (plain, version) if plain and version else (key, None)


def unmark_request[R: web.BaseRequest](request: R) -> tuple[R, Version | None]:
    """Return a request with its keys as they are without a version, and the version.

    Keys count in the headers and the query parameter in which clients have them.
    """
    version = None
    for name in _KEY_HEADERS:
        if _MARK in request.headers.get(name, ""):
            headers = request.headers.copy()
            key, version = unmark(headers[name].strip())
            headers[name] = key
            request = cast("R", request.clone(headers=headers))
    if "sdk-" in request.raw_path and (found := _IN_QUERY.search(request.raw_path)):
        version = (int(found[2]), int(found[3]))
        url = yarl.URL(_IN_QUERY.sub(r"\1", str(request.rel_url)), encoded=True)
        request = cast("R", request.clone(rel_url=url))
    return request, version


def _with_known_tools(prompt: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the members of a prompt that lists no tools but those that every program knows."""
    if bytes(prompt.get("tools", b"")).count(b",") > _MAX_VALUES:
        return prompt
    try:
        tools = _TOOLS.decode(prompt["tools"])
        known = [
            tool for tool in tools if "kind" not in tool or _KIND.decode(tool["kind"]) in _IMPORTED
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return prompt
    return prompt if len(known) == len(tools) else prompt | {"tools": msgspec.Raw(_encode(known))}


_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=1000)])
_TOOLS: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_KIND: Final = msgspec.json.Decoder(str)
_encode: Final = msgspec.json.encode
