"""Reads the fields of a conversation's untrusted record; invalid fields are left out. Pure."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from agentsvc.base import MAX_INT, InvalidRequest, parse_time, parse_uuid
from agentsvc.extension.history import (
    Generation,
    Metrics,
    Provider,
    TokenUsage,
    Trigger,
    check_branch,
    check_repository,
)

from .model import ImportedConversation, Unreadable

_MAX_TEXT: Final = 4096
_MAX_TAGS: Final = 100
_TOKENS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "context_window",
    "per_turn_token",
)
_NAMESPACE: Final = uuid.UUID("6d0c1c4e-4f0b-5d6c-9f0e-5f7a2f1b9a41")
"""Namespace of the ids derived from ids of another server."""

type Fields = Mapping[str, Any]


class Reader:
    """The fields of one record, and notes about those that were left out."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self.notes: list[str] = []

    def text(self, name: str) -> str | None:
        """Return a text without control characters, or None."""
        value = self._fields.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            self._left_out(name)
            return None
        known = "".join(char if char.isprintable() else " " for char in value).strip()
        return known[:_MAX_TEXT] or None

    def choice[T: StrEnum](self, name: str, kind: type[T]) -> T | None:
        """Return a member of an enumeration, or None."""
        value = self.text(name)
        if value is None or value in set(kind):
            return None if value is None else kind(value)
        self._left_out(name, value)
        return None

    def number(self, name: str) -> float:
        """Return a finite number that is not negative, 0 without one."""
        value = self._fields.get(name) or 0
        if isinstance(value, int | float) and 0 <= value <= MAX_INT:
            return float(value)
        self._left_out(name)
        return 0.0

    def flag(self, name: str) -> bool | None:
        """Return a boolean, which a database may store as 0 or 1, or None."""
        value = self._fields.get(name)
        return bool(value) if value in (0, 1) else None

    def time(self, name: str) -> datetime | None:
        """Return a time, as UTC if it has no offset, or None."""
        text = self.text(name)
        moment = None if text is None else parse_time(text)
        if text is None or (moment is not None and is_storable(moment)):
            return moment
        self._left_out(name, text)
        return None

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers, which may be encoded as a JSON string."""
        value = _from_text(self._fields.get(name)) or []
        if isinstance(value, list) and all(_is_whole(one) for one in value):
            return tuple(value[:_MAX_TAGS])
        self._left_out(name)
        return ()

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return a map of strings, which may be encoded as a JSON string."""
        value = _from_text(self._fields.get(name)) or {}
        if isinstance(value, dict) and len(value) <= _MAX_TAGS:
            return {
                key[:_MAX_TEXT]: text[:_MAX_TEXT] for key, text in value.items() if _is_text(text)
            }
        self._left_out(name)
        return {}

    def metrics(self, model: str | None) -> Metrics | None:
        """Return the metrics of the conversation, or None if all are zero."""
        cost = self.number("accumulated_cost")
        used = {name: int(self.number(name)) for name in _TOKENS}
        if not cost and not any(used.values()):
            return None
        return Metrics(
            model_name=model or "default",
            accumulated_cost=cost,
            max_budget_per_task=self.number("max_budget_per_task") or None,
            accumulated_token_usage=msgspec.convert({"model": model or "", **used}, TokenUsage),
        )

    def repository(self, provider: Provider | None) -> tuple[str | None, str | None]:
        """Return a repository and a branch of it, None for invalid names."""
        repository, branch = self.text("selected_repository"), self.text("selected_branch")
        try:
            if repository is not None and "://" not in repository:
                check_repository(repository, provider)
        except InvalidRequest:
            self._left_out("selected_repository", repository)
            return None, None
        try:
            if branch is not None:
                check_branch(branch)
        except InvalidRequest:
            self._left_out("selected_branch", branch)
            return repository, None
        return repository, branch

    def conversation(
        self, generation: Generation, source_id: str, directory: str
    ) -> ImportedConversation:
        """Return the fields that a conversation has in both generations."""
        model, provider = self.text("llm_model"), self.choice("git_provider", Provider)
        repository, branch = self.repository(provider)
        return ImportedConversation(
            generation=generation,
            directory=directory,
            source_id=source_id,
            id=id_of(source_id),
            title=self.text("title"),
            selected_repository=repository,
            selected_branch=branch,
            git_provider=provider,
            trigger=self.choice("trigger", Trigger),
            pr_number=self.numbers("pr_number"),
            llm_model=model,
            metrics=self.metrics(model),
            created_at=self.time("created_at"),
            updated_at=self.time("last_updated_at"),
        )

    def _left_out(self, name: str, value: object = "") -> None:
        shown = f" `{str(value)[:60]}`" if value else ""
        self.notes.append(f"`{name}`{shown} is left out")


def decode_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object; raises Unreadable for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise Unreadable("is not a JSON object") from exc


def compact(data: bytes) -> bytes:
    """Remove whitespace from JSON; raises Unreadable if it is nested too deeply."""
    try:
        return msgspec.json.format(data, indent=-1)
    except RecursionError as exc:
        raise Unreadable("is nested too deeply") from exc


def id_of(source_id: str) -> str:
    """Return the id here of an item: its own if that is a UUID, otherwise derived from it."""
    return parse_uuid(source_id) or uuid.uuid5(_NAMESPACE, source_id).hex


def id_within(conversation_id: str, name: str) -> str:
    """Return a deterministic id, with dashes, for a part of a conversation."""
    return str(uuid.uuid5(uuid.UUID(conversation_id), name))


def is_storable(moment: datetime) -> bool:
    """Return whether a time is in the range allowed for conversations."""
    return datetime(2000, 1, 1, tzinfo=UTC) <= moment <= datetime(9000, 1, 1, tzinfo=UTC)


def shown(names: Iterable[str], *, most: int = 3) -> str:
    """Join the first names, with the number of the others."""
    listed = list(names)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")


def _from_text(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()
