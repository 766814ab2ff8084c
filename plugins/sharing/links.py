"""Stores the links of shared conversations, and reads the data that they show."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from agentsvc.base import Conflict, InvalidRequest, NotFound, new_id, now, parse_uuid, to_stored
from agentsvc.extension.history import ConversationView, EventQuery
from agentsvc.extension.preferences import SecretStore, SettingsStore
from agentsvc.extension.server import Server
from agentsvc.extension.storage import Records, Transaction, note_effect, record_of

from .config import SharingConfig
from .redaction import SHOWN_KINDS, Redaction, show

MAX_LINKS: Final = 1000
"""Maximum number of valid links per user."""

MIGRATIONS: Final = (
    """
    CREATE TABLE plugin_sharing_links (
        id TEXT NOT NULL PRIMARY KEY,
        conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
        user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
        redact TEXT NOT NULL,
        created_at TEXT NOT NULL,
        expires_at TEXT
    ) STRICT;
    CREATE INDEX plugin_sharing_links_by_user ON plugin_sharing_links (user_id, created_at);
    CREATE INDEX plugin_sharing_links_by_conversation ON plugin_sharing_links (conversation_id);
    """,
)

_LIVE: Final = "(expires_at IS NULL OR expires_at > :now)"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link to one conversation; its id is the only credential."""

    id: str
    conversation_id: str
    user_id: str
    redact: tuple[Redaction, ...]
    created_at: datetime
    expires_at: datetime | None


class _LinkTable(Records[Link], table="plugin_sharing_links"):
    """The SQL of links."""


class Links:
    """The links of all users."""

    def __init__(self, server: Server, config: SharingConfig) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._config = config

    async def add(
        self,
        user_id: str,
        conversation_id: str,
        *,
        redact: Collection[Redaction],
        expires_at: datetime | None,
    ) -> Link:
        """Create a link; raises NotFound, Conflict for too many, InvalidRequest for a past time."""
        view = await self._conversations.get(user_id, conversation_id)
        moment = now()
        if expires_at is not None and expires_at <= moment:
            raise InvalidRequest("The time is in the past", loc=("body", "expires_at"))
        if self._config.longest_days:
            last = moment + timedelta(days=self._config.longest_days)
            expires_at = min(expires_at or last, last)
        link = Link(
            id=new_id(),
            conversation_id=view.conversation.id,
            user_id=user_id,
            redact=tuple(one for one in Redaction if one in redact),
            created_at=moment,
            expires_at=expires_at,
        )

        async def body(tx: Transaction) -> Link:
            params = {"user_id": user_id, "now": to_stored(moment)}
            sql = f"DELETE FROM plugin_sharing_links WHERE user_id = :user_id AND NOT {_LIVE}"  # noqa: S608  # a constant
            await tx.run(sql, params)
            sql = "SELECT COUNT(*) AS count FROM plugin_sharing_links WHERE user_id = :user_id"
            if (await tx.value(sql, params) or 0) >= MAX_LINKS:
                raise Conflict(f"There are {MAX_LINKS} links; revoke some of them first")
            await _LinkTable.insert(tx, link)
            await note_effect(tx, link)
            return link

        return await self._db.write(body)

    async def list_of(self, user_id: str, conversation_id: str | None = None) -> list[Link]:
        """Return a user's valid links, of one conversation or of all, in the order of creation."""
        where = "" if conversation_id is None else " AND conversation_id = :conversation_id"
        tail = f"WHERE user_id = :user_id AND {_LIVE}{where} ORDER BY created_at, id"
        params = {"user_id": user_id, "now": to_stored(now()), "conversation_id": conversation_id}
        return await _LinkTable.select(self._db, tail, **params)

    async def revoke(self, user_id: str, link_id: str) -> None:
        """Delete a link, which is invalid from then on; raises NotFound."""
        sql = "DELETE FROM plugin_sharing_links WHERE id = :id AND user_id = :user_id"
        params = {"id": parse_uuid(link_id), "user_id": user_id}
        if not await self._db.write(lambda tx: tx.run(sql, params)):
            raise NotFound("There is no such link")

    async def find(self, link_id: str) -> Link | None:
        """Return a valid link; None also if its user is blocked or being deleted."""
        known = parse_uuid(link_id)
        if known is None:
            return None
        params = {"id": known, "now": to_stored(now())}
        found = await _LinkTable.first(self._db, _FIND, **params)
        if found is None and self._config.public_flag:
            row = await self._db.one(_FIND_PUBLIC, params)
            found = record_of(row, Link) if row else None
        return found


class SharedView:
    """The data that one link shows, without the secrets of its user."""

    def __init__(
        self, server: Server, link: Link, view: ConversationView, mask: Callable[[str], str]
    ) -> None:
        self._events = server.events
        self.link = link
        self.conversation = view.conversation
        self.mask = mask

    @classmethod
    async def open(cls, server: Server, link: Link) -> "SharedView":
        """Load the conversation and its user's secrets; raises NotFound if it did not start."""
        user_id, conversation_id = link.user_id, link.conversation_id
        view = await server.conversations.get(user_id, conversation_id)
        secrets = SecretStore(server.database, server.vault)
        tasks, _ = await server.conversations.starts.search(
            user_id, conversation_id=conversation_id
        )
        known = [
            await SettingsStore(server.database, server.vault).get(user_id),
            await secrets.custom_secrets(user_id),
            await secrets.provider_tokens(user_id),
            [task.request for task in tasks],
            [view.sandbox.session_key] if view.sandbox else [],
        ]
        return cls(server, link, view, await asyncio.to_thread(_mask_of, known))

    async def search(
        self, query: EventQuery, *, page_id: str | None, limit: int
    ) -> tuple[list[bytes], str | None]:
        """Return a page of redacted events, and the id of the next page."""
        found, next_page_id = await self._events.search(
            self.conversation.id, _only_shown_kinds(query), page_id=page_id, limit=limit
        )
        shown = await asyncio.to_thread(self._show, [one.body for one in found])
        return [one for one in shown if one is not None], next_page_id

    async def count(self, query: EventQuery) -> int:
        """Return the number of events that a search finds on all pages."""
        return await self._events.count(self.conversation.id, _only_shown_kinds(query))

    async def find_many(self, ids: Sequence[str]) -> list[bytes | None]:
        """Return the redacted event of each id, or None."""
        found = await self._events.find_many(self.conversation.id, ids)
        return await asyncio.to_thread(self._show, [one.body if one else None for one in found])

    def _show(self, bodies: Sequence[bytes | None]) -> list[bytes | None]:
        return [body and show(body, self.mask, self.link.redact) for body in bodies]


def _mask_of(known: list[Any]) -> Callable[[str], str]:
    from .masking import Masker, secrets_in  # noqa: PLC0415  # slow to import

    return Masker(secrets_in(known)).mask


def _only_shown_kinds(query: EventQuery) -> EventQuery:
    return msgspec.structs.replace(query, kinds=SHOWN_KINDS)


_OWNER: Final = "user_id IN (SELECT id FROM users WHERE blocked_at IS NULL AND leaving_at IS NULL)"
_FIND: Final = f"WHERE t.id = :id AND {_LIVE} AND {_OWNER}"
_FIND_PUBLIC: Final = f"""
    SELECT id, id AS conversation_id, user_id, '[]' AS redact, created_at, NULL AS expires_at
    FROM conversations
    WHERE id = :id AND is_public = 1 AND {_OWNER}
"""  # noqa: S608  # constants
