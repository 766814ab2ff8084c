"""The resources: the events, files and diffs of conversations."""

import re
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from agentsvc.base import BadRequest, NotFound, parse_uuid
from agentsvc.extension.agents import FILES, ConversationQuery, Principal
from agentsvc.extension.server import Server

from .tools import get_view

_SCHEME: Final = "agentsvc://conversations/"
_URI: Final = re.compile(
    _SCHEME + r"(?P<id>[0-9a-fA-F-]{32,36})/(?P<kind>events|files|changes|diff)(?:/(?P<path>.+))?"
)
_JSON: Final = "application/json"
_LINES: Final = "application/jsonl"
_PAGE_SIZE: Final = 20
_MAX_EVENTS: Final = 1000
_MAX_BYTES: Final = 4 * 1024 * 1024

TEMPLATES: Final = tuple(
    {
        "uriTemplate": f"{_SCHEME}{{conversation_id}}/{rest}",
        "name": name,
        "description": text,
        "mimeType": media,
    }
    for rest, name, text, media in (
        ("events", "events", f"The first {_MAX_EVENTS} events, one a line", _LINES),
        ("events/{after}", "later events", "Events after the one with a number", _LINES),
        ("files", "files", "Paths of the files of the workspace", _JSON),
        ("files/{+path}", "file", "A text file of the workspace", "text/plain"),
        ("changes", "changes", "Files that differ from the last commit", _JSON),
        ("diff/{+path}", "diff", "A file as it was and as it is", _JSON),
    )
)


async def list_resources(server: Server, caller: Principal, page_id: str | None) -> dict[str, Any]:
    """Return the event and change resources of conversations, the newest first."""
    views, next_page_id = await server.conversations.search(
        caller.user_id, ConversationQuery(), page_id=page_id, limit=_PAGE_SIZE
    )
    found = [
        {
            "uri": f"{_SCHEME}{view.conversation.id}/{kind}",
            "name": f"{kind} of {view.conversation.title or view.conversation.id}",
            "mimeType": media,
        }
        for view in views
        for kind, media in (("events", _LINES), ("changes", _JSON))
    ]
    return {"resources": found} | ({"nextCursor": next_page_id} if next_page_id else {})


async def read_resource(server: Server, caller: Principal, uri: str) -> dict[str, Any]:
    """Return the content of a URI; raises NotFound, and the errors of the API."""
    found = _URI.fullmatch(uri)
    conversation_id = parse_uuid(found["id"]) if found else None
    path = unquote(found["path"] or "") if found else ""
    if found is None or conversation_id is None or "\0" in path:
        raise NotFound("There is no such resource")
    # Checks first that the conversation belongs to the caller.
    await get_view(server, caller, conversation_id)
    media, text = await _read(server, caller, conversation_id, found["kind"], path)
    return {"contents": [{"uri": uri, "mimeType": media, "text": text}]}


async def _read(
    server: Server, caller: Principal, conversation_id: str, kind: str, path: str
) -> tuple[str, str]:
    files, user_id = server.app[FILES], caller.user_id
    match kind, bool(path):
        case "events", _:
            after = int(path) if re.fullmatch(r"[0-9]{1,15}", path) else -1
            events = await server.events.read_stretch(
                conversation_id,
                from_seq=after + 1,
                to_seq=None,
                limit=_MAX_EVENTS,
                max_bytes=_MAX_BYTES,
            )
            return _LINES, "".join(f"{one.body.decode()}\n" for one in events)
        case "files", False:
            return _JSON, _json(await files.list_files(user_id, conversation_id, "."))
        case "files", True:
            text = await files.read_text(user_id, conversation_id, path)
            if not text:
                raise NotFound(
                    "There is no such text file, or it is empty, or the sandbox does not run"
                )
            return "text/plain", text
        case "changes", False:
            return _JSON, _json(await files.git_changes(user_id, conversation_id, "."))
        case "diff", True:
            try:
                return _JSON, _json(await files.git_diff(user_id, conversation_id, path))
            except BadRequest as exc:
                raise NotFound(exc.message) from exc
        case _:
            raise NotFound("There is no such resource")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
