"""Stores the data of another server for a user: each conversation in one transaction."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from typing import Final

from agentsvc.base import InvalidRequest, copy_to, now, parse_uuid
from agentsvc.extension.history import (
    Conversation,
    Conversations,
    Facts,
    Generation,
    TitleSource,
    default_title,
)
from agentsvc.extension.preferences import SecretStore, Settings, SettingsStore
from agentsvc.extension.storage import Database, Vault

from .credentials import SecretOpener
from .files import Tree
from .model import History, ImportedConversation, ImportResult, Item, Unreadable
from .preferences import apply_changes, read_settings, read_user_secrets
from .records import id_within
from .v0 import find_v0, read_v0, v0_users
from .v1 import find_v1, read_v1, v1_users

_CONVERSATION: Final = "conversation"


class Importer:
    """Imports a data directory, and reports the result of each item.

    The data becomes that of the user `user_id`; if the other server separated users, it is read from
    `source_user`. In a dry run nothing is stored.
    """

    def __init__(
        self,
        db: Database,
        vault: Vault,
        tree: Tree,
        user_id: str,
        source_user: str | None,
        *,
        is_dry: bool,
    ) -> None:
        self._db = db
        self._vault = vault
        self._tree = tree
        self._user_id = user_id
        self._source_user = source_user
        self._is_dry = is_dry
        self._conversations = Conversations(db, vault)

    async def run(self) -> AsyncIterator[Item]:
        """Run the import, and yield the result of each item as soon as it is stored."""
        opener = await asyncio.to_thread(SecretOpener.of, self._tree)
        if (settings := await self._settings(opener)) is not None:
            yield settings
        async for item in self._secrets(opener):
            yield item
        for found in await asyncio.to_thread(self._find):
            yield await self._import(found)

    async def other_users(self) -> list[str]:
        """Return the users of the other server whose data is not imported."""
        known = await asyncio.to_thread(lambda: {*v0_users(self._tree), *v1_users(self._tree)})
        return sorted(known - {self._source_user})

    # Settings and secrets

    async def _settings(self, opener: SecretOpener) -> Item | None:
        try:
            read = await asyncio.to_thread(read_settings, self._tree, opener)
        except (Unreadable, RecursionError) as exc:
            return _skipped("settings", "settings.json", _why(exc))
        if read is None:
            return None
        changes, notes = read
        user_id = self._user_id
        store = SettingsStore(self._db, self._vault)
        old = await store.get(user_id)
        new = apply_changes(old, changes, notes)
        if new != old and not self._is_dry:
            try:
                # The settings may have changed since they were read.
                await store.change(
                    user_id, lambda now_: apply_changes(now_ or Settings(), changes, [])
                )
            except InvalidRequest as exc:
                return _skipped("settings", "settings.json", exc.message)
        outcome = ImportResult.PRESENT if new == old else ImportResult.IMPORTED
        return Item(kind="settings", name="settings.json", outcome=outcome, notes=tuple(notes))

    async def _secrets(self, opener: SecretOpener) -> AsyncIterator[Item]:
        try:
            found, left_out = await asyncio.to_thread(read_user_secrets, self._tree, opener)
        except (Unreadable, RecursionError) as exc:
            yield _skipped("secret", "secrets.json", _why(exc))
            return
        for kind, name, reason in left_out:
            yield _skipped(kind, name, reason)
        store = SecretStore(self._db, self._vault)
        hosts = await store.provider_hosts(self._user_id)
        names = await store.custom_secret_names(self._user_id)
        known = {"token": set(hosts), "secret": set(names)}
        for one in found:
            is_known = one.name in known[one.kind]
            if not is_known and not self._is_dry:
                try:
                    await store.patch(self._user_id, one.patch)
                except InvalidRequest as exc:
                    yield _skipped(one.kind, one.name, exc.message)
                    continue
            outcome = ImportResult.PRESENT if is_known else ImportResult.IMPORTED
            yield Item(kind=one.kind, name=one.name, outcome=outcome)

    # Conversations

    def _find(self) -> list[ImportedConversation | tuple[str, str]]:
        listed: list[ImportedConversation | tuple[str, str]] = []
        for find in (find_v0, find_v1):
            try:
                listed.extend(find(self._tree, self._source_user))
            except Unreadable as exc:
                listed.append(("directory", str(exc)))
        return listed

    async def _import(self, found: ImportedConversation | tuple[str, str]) -> Item:
        if not isinstance(found, ImportedConversation):
            return _skipped(_CONVERSATION, *found)
        known = await self._known(found)
        if known is not None:
            return known
        read = read_v0 if found.generation is Generation.V0 else read_v1
        try:
            history = await asyncio.to_thread(read, self._tree, found)
        except Unreadable as exc:
            return _skipped(_CONVERSATION, found.source_id, str(exc))
        if not history.bodies:
            notes = (*found.notes, *history.notes, "has no events")
            return _skipped(_CONVERSATION, found.source_id, *notes)
        return await self._store(found, history)

    async def _known(self, found: ImportedConversation) -> Item | None:
        user_id = self._user_id
        there = await self._conversations.find(found.id)
        if there is not None and there.user_id != user_id:
            return _skipped(_CONVERSATION, found.source_id, "belongs to another user here")
        if there is not None:
            return Item(
                kind=_CONVERSATION,
                name=found.source_id,
                outcome=ImportResult.PRESENT,
                title=there.title or "",
            )
        if found.alias and await self._conversations.find_by_alias(user_id, found.alias):
            return _skipped(_CONVERSATION, found.source_id, "has the name of another one here")
        return None

    async def _store(self, found: ImportedConversation, history: History) -> Item:
        conversation, notes = await self._conversation(found, history)
        left_out = 0
        if not self._is_dry:
            task_id = parse_uuid(id_within(found.id, "start")) or found.id
            left_out = await self._conversations.add(conversation, history.bodies, task_id=task_id)
        if left_out:
            notes = (*notes, f"{left_out} events are left out: no events, or there twice")
        return Item(
            kind=_CONVERSATION,
            name=found.source_id,
            outcome=ImportResult.IMPORTED,
            title=conversation.title or "",
            events=history.count - left_out,
            notes=notes,
        )

    async def _conversation(
        self, found: ImportedConversation, history: History
    ) -> tuple[Conversation, tuple[str, ...]]:
        notes = tuple(chain(found.notes, history.notes))
        parent = await self._conversations.find(found.parent_id) if found.parent_id else None
        has_parent = parent is not None and parent.user_id == self._user_id
        if found.parent_id and not has_parent and not self._is_dry:
            notes = (*notes, "the conversation it belongs to is not here")
        created_at = found.created_at or history.first_at or now()
        return copy_to(
            Conversation,
            found,
            user_id=self._user_id,
            sandbox_id=None,
            title=found.title or default_title(found.id),
            title_source=TitleSource.USER if found.title else TitleSource.DEFAULT,
            facts=Facts(),
            parent_id=found.parent_id if has_parent else None,
            working_dir="",
            is_ready=True,
            start_failed=False,
            start_detail=None,
            sub_ids=(),
            created_at=created_at,
            updated_at=max(created_at, found.updated_at or history.last_at or created_at),
        ), notes


def _why(exc: Unreadable | RecursionError) -> str:
    return str(exc) if isinstance(exc, Unreadable) else "is nested too deeply"


def _skipped(kind: str, name: str, *notes: str) -> Item:
    return Item(kind=kind, name=name, outcome=ImportResult.SKIPPED, notes=notes)
