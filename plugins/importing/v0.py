"""Conversations of the first generation: a directory each, with a file for each event.

The directory is `sessions/ID`, or `users/USER/conversations/ID`. It contains `metadata.json` and
`events/NUMBER.json`, numbered from 0.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agentsvc.extension.history import Generation

from .files import Entry, Tree
from .model import History, ImportedConversation, Unreadable
from .records import Reader, compact, decode_object, shown
from .v0_events import Converter

MAX_RECORD_BYTES: Final = 1024 * 1024
MAX_EVENT_BYTES: Final = 16 * 1024 * 1024
MAX_HISTORY_BYTES: Final = 256 * 1024 * 1024

_EVENT: Final = re.compile(r"(0|[1-9][0-9]{0,8})\.json")
_SOURCE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_MAX_MISSING: Final = 1000
_MAX_CONVERTED_BYTES: Final = 3 * MAX_HISTORY_BYTES
"""An event may be stored three times: as the original, as its twin, and as the arguments of a tool call."""
_KINDS: Final[Mapping[str, type]] = {
    "timestamp": str,
    "source": str,
    "observation": str,
    "extras": dict,
}


def find_v0(tree: Tree, user: str | None) -> Iterator[ImportedConversation | tuple[str, str]]:
    """Yield each conversation of a user, or the name of a directory and why it is not one."""
    parent = "sessions" if user is None else f"users/{user}/conversations"
    for entry in tree.entries(parent):
        if not entry.is_directory:
            continue
        if not _SOURCE_ID.fullmatch(entry.name):
            yield entry.name, "is not a valid id of a conversation"
            continue
        yield _found(tree, f"{parent}/{entry.name}", entry.name)


def v0_users(tree: Tree) -> list[str]:
    """Return the users with their own conversations at the other server."""
    return [entry.name for entry in tree.entries("users") if entry.is_directory]


def read_v0(tree: Tree, found: ImportedConversation) -> History:
    """Return the events of a conversation; raises Unreadable if they are too large."""
    files = _numbered(tree.entries(f"{found.directory}/events"))
    last = len(files) * 2 + _MAX_MISSING
    converter = Converter(found.id, max_bytes=_MAX_CONVERTED_BYTES)
    size, broken = 0, []
    for number, entry in sorted(files.items()):
        name = f"events/{entry.name}"
        if number > last:
            broken.append(f"{name} has a number far beyond the others")
            continue
        try:
            data = tree.read(f"{found.directory}/{name}", max_bytes=MAX_EVENT_BYTES)
            event, original = _event_of(data, number), msgspec.Raw(compact(data))
        except Unreadable as exc:
            broken.append(f"{name} {exc}")
            continue
        size += len(data)
        if size > MAX_HISTORY_BYTES:
            raise Unreadable(f"has events of more than {MAX_HISTORY_BYTES} bytes")
        converter.add(number, event, original)
    notes = (f"{len(broken)} events are left out: {shown(broken)}",) if broken else ()
    return History(
        bodies=converter.bodies,
        count=len(files) - len(broken),
        notes=notes,
        first_at=converter.first_at,
        last_at=converter.last_at,
    )


def _found(tree: Tree, directory: str, source_id: str) -> ImportedConversation:
    try:
        data = tree.find(f"{directory}/metadata.json", max_bytes=MAX_RECORD_BYTES)
        record = {} if data is None else decode_object(data)
        notes = ["there is no metadata.json"] if data is None else []
    except Unreadable as exc:
        record, notes = {}, [f"metadata.json {exc}"]
    reader = Reader(record)
    found = reader.conversation(Generation.V0, source_id, directory)
    return msgspec.structs.replace(found, notes=(*notes, *reader.notes))


def _numbered(entries: list[Entry]) -> dict[int, Entry]:
    found = ((_EVENT.fullmatch(one.name), one) for one in entries if not one.is_directory)
    return {int(match[1]): one for match, one in found if match is not None}


def _event_of(data: bytes, number: int) -> dict[str, Any]:
    event = decode_object(data)
    if type(event.get("id")) is not int or event["id"] != number:
        raise Unreadable("has another number inside")
    if not isinstance(event.get("action"), str) and not isinstance(event.get("observation"), str):
        raise Unreadable("is neither an action nor an observation")
    for name, kind in _KINDS.items():
        if not isinstance(event.get(name, kind()), kind) or "timestamp" not in event:
            raise Unreadable(f"has another `{name}` than events have")
    return event
