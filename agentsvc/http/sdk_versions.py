"""Converts events to what a given version of the Python SDK can read. Pure.

The SDK's models reject unknown fields and event kinds, so one new field in one event makes a whole
conversation unreadable for an older client. Versions since 1.54 read what current agent servers
write. A client states its version as a suffix of its key, as in `asvc_…~sdk-1.30`, because older
clients have no other setting that reaches the server.
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
"""The oldest version that was tested; older ones are treated as this one."""
HTTP_CLIENT: Final = "python-httpx/"
"""User-Agent prefix of the SDK and the command line, which send httpx's default."""
_IN_QUERY = re.compile(
    r"([?&]session_api_key=[^&#?]*?)(?:~|%7[Ee])sdk-([0-9]{1,3})\.([0-9]{1,3})(?=[&#]|\Z)"
)
_VERSION = re.compile(r"\A([0-9]{1,3})\.([0-9]{1,3})\Z")
_MARK: Final = "~sdk-"
_KEY_HEADERS: Final = (istr("X-Session-API-Key"), hdrs.AUTHORIZATION, istr("X-Access-Token"))
_MAX_VALUES: Final = 300_000
"""Most members of an event, and a quarter of those of a page; larger ones are not parsed."""
_ANY: Final = ""
_PROMPT: Final = "SystemPromptEvent"


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """An event kind, or fields of events, that an SDK version added."""

    version: Version
    kind: str = _ANY
    """The event kind; empty if the fields were added to all kinds."""
    fields: frozenset[str] = frozenset()
    """Fields added to the kind; empty if the kind itself is new."""


ADDED: Final = (
    Added(version=(1, 23), kind="InterruptEvent"),
    Added(version=(1, 31), fields=frozenset({"parent_id"})),
    Added(version=(1, 34), kind="ObservationEvent", fields=frozenset({"extended_content"})),
    Added(version=(1, 40), kind="AgentErrorEvent", fields=frozenset({"classification"})),
    Added(version=(1, 40), kind="ConversationErrorEvent", fields=frozenset({"classification"})),
    Added(version=(1, 54), kind="SecurityAnalysisEvent"),
)
"""All additions to events since the oldest version."""
COMPLETE: Final[Version] = max(added.version for added in ADDED)
"""The first version that reads all events."""


_IMPORTS_TOOLS: Final[Version] = (1, 50)
"""From this version on, clients import the tools of a conversation that they join."""
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
"""Tools that clients of all versions know without importing `openhands.tools` modules."""


class EventReader:
    """Removes from events what one SDK version cannot read; everything else stays unchanged."""

    def __init__(self, version: Version) -> None:
        self._imports_tools = version >= _IMPORTS_TOOLS
        self._unknown = {one.kind for one in ADDED if one.version > version and not one.fields}
        self._fields: dict[str, frozenset[str]] = {}
        for one in ADDED:
            if one.version > version and one.fields:
                known = self._fields.get(one.kind, frozenset())
                self._fields[one.kind] = known | one.fields

    def event(self, body: bytes) -> bytes | None:
        """Convert an event; returns None if the version does not know its kind.

        A body that is no event, or that is larger than any event, is returned unchanged.
        """
        # Each member has a colon, which texts contain less often than commas.
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
        """Convert events; drops those of kinds that the version does not know."""
        read = (self.event(body) for body in bodies)
        return [body for body in read if body is not None]

    def answer(self, body: bytes) -> bytes:
        """Convert a response of an agent server: a page of events, a list with nulls, or one event.

        Any other body, or one that is larger than any response, is returned unchanged.
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
    """Fields that the SDK always writes; `usage_id` and `drop_params` exist in all versions."""

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
    """Return the converter for a version, or None if the version reads all events."""
    return None if version is None or version >= COMPLETE else EventReader(version)


def version_of_start(body: bytes) -> Version | None:
    """Detect the SDK version that wrote a start request by the fields that are missing.

    The SDK writes every field it knows. Returns the oldest version with these fields, or None for a
    body that the SDK did not write or whose version may read all events.
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
    """Return the SDK version of a client that uses the device login, or None for a current one.

    Only the command line `openhands` logs in with httpx, and its newest version has the oldest SDK.
    """
    return OLDEST if user_agent.startswith(HTTP_CLIENT) else None


def parse_version(text: str) -> Version | None:
    """Parse a version such as `1.30`; returns None for any other text."""
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


def write_version(version: Version) -> str:
    """Format a version as in `1.30`."""
    return f"{version[0]}.{version[1]}"


def mark(key: str, version: Version | None) -> str:
    """Append a client's version to a key; without a version, return the key unchanged."""
    return key if version is None else f"{key}{_MARK}{write_version(version)}"


def unmark(key: str) -> tuple[str, Version | None]:
    """Split a key into the plain key and the version in its suffix, None without a suffix."""
    plain, _, suffix = key.rpartition(_MARK)
    version = parse_version(suffix)
    return (plain, version) if plain and version else (key, None)


def unmark_request[R: web.BaseRequest](request: R) -> tuple[R, Version | None]:
    """Return the request without version suffixes in its keys, and the version.

    Looks at the key headers and the query parameter `session_api_key`.
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
    """Remove from a system prompt event the tools that clients of older versions cannot import."""
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
