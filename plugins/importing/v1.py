"""Conversations of the second generation: rows of a database, and a file for each event.

The database is `openhands.db`. Events are in `v1_conversations/ID`, or `USER/v1_conversations/ID`,
with ids with or without dashes; the names of their files have changed between releases.
"""

import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base import BadRequest, parse_time, parse_uuid
from agentsvc.extension.history import ExecutionStatus, Generation
from agentsvc.extension.storage import read_foreign

from .files import Entry, Tree
from .model import History, ImportedConversation, Unreadable
from .records import Reader, compact, is_storable, shown
from .v0 import MAX_EVENT_BYTES, MAX_HISTORY_BYTES

DATABASE: Final = "openhands.db"
EVENTS: Final = "v1_conversations"

_MAX_DATABASE_BYTES: Final = 8 * 1024 * 1024 * 1024
_MAX_CONVERSATIONS: Final = 100_000
_SUFFIXES: Final = ("", "-journal", "-wal")


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    timestamp: str


_head: Final = msgspec.json.Decoder(_Head)
_object: Final = msgspec.json.Decoder(dict[str, Any])


def find_v1(tree: Tree, user: str | None) -> Iterator[ImportedConversation | tuple[str, str]]:
    """Yield each conversation of a user, parents first, or the name of a file and its problem."""
    parent = EVENTS if user is None else f"{user}/{EVENTS}"
    directories = {
        known: f"{parent}/{entry.name}"
        for entry in tree.entries(parent)
        if entry.is_directory and (known := parse_uuid(entry.name)) is not None
    }
    rows, problem = _rows(tree)
    if problem:
        yield DATABASE, problem
    own = {known: row for known, row in rows.items() if (row.get("user_id") or None) == user}
    found = [_found(known, directories.pop(known, ""), row) for known, row in own.items()]
    for known, directory in directories.items():
        if known in rows:
            continue
        lost = Reader({}).conversation(Generation.V1, known, directory)
        found.append(msgspec.structs.replace(lost, notes=(f"{DATABASE} does not know it",)))
    yield from _parents_first(found)


def v1_users(tree: Tree) -> list[str]:
    """Return the users with their own conversations at the other server."""
    return [entry.name for entry in tree.entries() if entry.is_directory and _is_user(tree, entry)]


def read_v1(tree: Tree, found: ImportedConversation) -> History:
    """Return the events of a conversation; raises Unreadable if they are too large."""
    listed: list[tuple[datetime, int, str, bytes]] = []
    broken: list[str] = []
    size = 0
    entries = tree.entries(found.directory) if found.directory else []
    for entry in entries:
        if entry.is_directory:
            continue
        try:
            moment, body = _read_event(tree, found.directory, entry)
        except Unreadable as exc:
            broken.append(f"{entry.name} {exc}")
            continue
        size += len(body)
        if size > MAX_HISTORY_BYTES:
            raise Unreadable(f"has events of more than {MAX_HISTORY_BYTES} bytes")
        listed.append((moment, entry.written_ns, entry.name, body))
    listed.sort(key=lambda one: one[:3])
    notes = (f"{len(broken)} events are left out: {shown(broken)}",) if broken else ()
    return History(
        bodies=[body for *_, body in listed],
        count=len(listed),
        notes=notes,
        first_at=listed[0][0] if listed else None,
        last_at=listed[-1][0] if listed else None,
    )


def _is_user(tree: Tree, entry: Entry) -> bool:
    try:
        return any(one.name == EVENTS for one in tree.entries(entry.name))
    except Unreadable:
        # The directory may be the cache of a container engine, owned by another system user.
        return False


def _read_event(tree: Tree, directory: str, entry: Entry) -> tuple[datetime, bytes]:
    data = tree.read(f"{directory}/{entry.name}", max_bytes=MAX_EVENT_BYTES)
    try:
        _object.decode(data)
        head = _head.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Unreadable("is not an event") from exc
    moment = parse_time(head.timestamp)
    if moment is None or not is_storable(moment):
        raise Unreadable("has no time")
    return moment, compact(data)


def _rows(tree: Tree) -> tuple[dict[str, Mapping[str, Any]], str]:
    """Return the rows of the database by conversation id, and the problem with it, if any."""
    try:
        with tempfile.TemporaryDirectory(prefix="agentsvc-import-") as place:
            if not _copied(tree, Path(place)):
                return {}, ""
            rows = read_foreign(
                Path(place, DATABASE), "conversation_metadata", max_rows=_MAX_CONVERSATIONS
            )
    except Unreadable as exc:
        return {}, str(exc)
    except BadRequest as exc:
        return {}, exc.message
    known = ((parse_uuid(str(row.get("conversation_id"))), row) for row in rows)
    return {
        conversation_id: row
        for conversation_id, row in known
        if conversation_id is not None and row.get("conversation_version") == "V1"
    }, ""


def _copied(tree: Tree, to: Path) -> bool:
    """Copy the database with its journal files, which exist if the server runs or was killed."""
    names = {entry.name for entry in tree.entries() if not entry.is_directory}
    for suffix in _SUFFIXES:
        if DATABASE + suffix in names:
            tree.copy(DATABASE + suffix, to / (DATABASE + suffix), max_bytes=_MAX_DATABASE_BYTES)
    return DATABASE in names


def _found(conversation_id: str, directory: str, row: Mapping[str, Any]) -> ImportedConversation:
    reader = Reader(row)
    parent = reader.text("parent_conversation_id")
    found = reader.conversation(Generation.V1, conversation_id, directory)
    missing = () if directory else ("its events are not there",)
    return msgspec.structs.replace(
        found,
        agent_kind=reader.text("agent_kind") or "openhands",
        parent_id=parse_uuid(parent) if parent else None,
        is_public=reader.flag("public"),
        tags=reader.texts_by_name("tags"),
        execution_status=reader.choice("execution_status", ExecutionStatus),
        max_budget=reader.number("max_budget_per_task") or None,
        notes=(*missing, *reader.notes),
    )


def _parents_first(found: list[ImportedConversation]) -> Iterator[ImportedConversation]:
    """Yield each conversation after its parent; cycles are cut."""
    by_id = {one.id: one for one in found}
    seen: set[str] = set()
    for one in found:
        line: list[ImportedConversation] = []
        at: ImportedConversation | None = one
        while at is not None and at.id not in seen:
            seen.add(at.id)
            line.append(at)
            at = by_id.get(at.parent_id or "")
        yield from reversed(line)
