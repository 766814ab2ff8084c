"""Settings and secrets of an OpenHands server, field by field, as changes to a user's own.

Both generations store them in `settings.json` and `secrets.json`: flat at first, later with the
objects `agent_settings`, `conversation_settings` and `llm_profiles`. Settings of the user here take
precedence.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import BadRequest, Conflict, InvalidRequest
from agentsvc.extension.preferences import (
    Llm,
    LlmBody,
    SecretsPatch,
    Settings,
    SettingsBody,
    check_profile_name,
    read_options,
    read_secrets,
    save_profile,
    to_change,
    to_llm,
)

from .credentials import SecretOpener
from .files import Tree
from .records import decode_object

SETTINGS: Final = "settings.json"
SECRETS: Final = "secrets.json"

_MAX_BYTES: Final = 4 * 1024 * 1024
_DIFFS: Final = {
    "agent_settings": "agent_settings_diff",
    "conversation_settings": "conversation_settings_diff",
}
_IGNORED: Final = frozenset(
    {
        "schema_version",
        "secrets_store",
        "llm_profiles",
        "registered_marketplaces",
        "inherited_marketplaces",
        "active_agent_profile_id",
        "active_agent_profile_revision",
    }
)
"""Fields that are ignored without a note: no settings, or of no use here."""
_DEFAULTS: Final = Settings()

type Change = Callable[[Settings], Settings]
type Named = tuple[str, Change]
"""A change, with the name of its field."""


class NamedSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret: its kind and name, and the change that stores it."""

    kind: str
    name: str
    patch: SecretsPatch


def read_settings(tree: Tree, opener: SecretOpener) -> tuple[list[Named], list[str]] | None:
    """Return the changes by the other server's settings, and notes; None without settings.

    Raises Unreadable if the file cannot be read.
    """
    record = _read(tree, SETTINGS)
    if record is None:
        return None
    left_out: list[str] = []
    opened = opener.open_all(record, left_out)
    changes: list[Named] = []
    for name, value in _parts(opened):
        try:
            changes.append((name, _change_of(name, value)))
        except (InvalidRequest, msgspec.ValidationError) as exc:
            left_out.append(f"`{name[:100]}` does not fit: {_message(exc)}")
    return [*changes, *_profiles(opened, left_out)], left_out


def apply_changes(old: Settings, changes: list[Named], notes: list[str]) -> Settings:
    """Apply the changes to fields still at their default; note the others and invalid values."""
    settings = old
    for field, change in changes:
        try:
            changed = change(settings)
        except (BadRequest, Conflict, InvalidRequest) as exc:
            notes.append(f"`{field[:100]}` does not fit: {exc.message}")
            continue
        touched = [
            name
            for name in Settings.__struct_fields__
            if getattr(changed, name) != getattr(settings, name)
        ]
        if any(getattr(old, name) != getattr(_DEFAULTS, name) for name in touched):
            notes.append(f"`{field[:100]}` is set here, and stays")
        else:
            settings = changed
    return settings


def read_user_secrets(
    tree: Tree, opener: SecretOpener
) -> tuple[list[NamedSecret], list[tuple[str, str, str]]]:
    """Return the secrets of the other server, and those left out: kind, name and reason.

    Raises Unreadable if a file cannot be read.
    """
    found: list[NamedSecret] = []
    left_out: list[tuple[str, str, str]] = []
    inside = (_read(tree, SETTINGS) or {}).get("secrets_store")
    for store in (_read(tree, SECRETS) or {}, inside if isinstance(inside, dict) else {}):
        for kind, name, item in _secrets_in(store):
            if any((one.kind, one.name) == (kind, name) for one in found):
                continue
            problems: list[str] = []
            opened = opener.open_all(item, problems)
            if problems:
                left_out.append((kind, name, problems[0].partition("` ")[2]))
                continue
            try:
                patch = read_secrets({_FIELDS[kind]: {name: opened}})
            except InvalidRequest as exc:
                left_out.append((kind, name, exc.message))
            else:
                found.append(NamedSecret(kind=kind, name=name, patch=patch))
    return found, left_out


_FIELDS: Final = {"token": "provider_tokens", "secret": "custom_secrets"}


def _secrets_in(store: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for kind, field in _FIELDS.items():
        listed = store.get(field)
        for name, item in listed.items() if isinstance(listed, dict) else ():
            value = item.get(kind) if isinstance(item, dict) else item
            if value:
                yield kind, name, item


def _read(tree: Tree, name: str) -> dict[str, Any] | None:
    data = tree.find(name, max_bytes=_MAX_BYTES)
    return None if data is None else decode_object(data)


def _parts(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each setting with its name; the names of nested ones contain dots."""
    for name, value in record.items():
        if name in _IGNORED or value is None:
            continue
        if name in _DIFFS and isinstance(value, dict):
            yield from _nested(name, value)
        elif name in SettingsBody.__struct_fields__:
            yield name, value


def _nested(path: str, record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if name in _IGNORED or value is None:
            continue
        # Other objects, such as the tool servers, are one setting each.
        if isinstance(value, dict) and name in (
            "llm",
            "condenser",
            "verification",
            "agent_context",
        ):
            yield from _nested(f"{path}.{name}", value)
        else:
            yield f"{path}.{name}", value


def _change_of(path: str, value: Any) -> Change:
    head, *steps = path.split(".")
    body: Any = value
    for step in reversed(steps):
        body = {step: body}
    return to_change(msgspec.convert({_DIFFS.get(head, head): body}, SettingsBody))


def _profiles(record: Mapping[str, Any], left_out: list[str]) -> Iterator[Named]:
    saved = record.get("llm_profiles")
    listed = saved.get("profiles") if isinstance(saved, dict) else None
    for name, item in listed.items() if isinstance(listed, dict) else ():
        try:
            llm = to_llm(read_options(item, LlmBody, loc=()), Llm(), keeps_secrets=False)
            check_profile_name(name)
        except (InvalidRequest, msgspec.ValidationError) as exc:
            left_out.append(f"`llm_profiles.{name[:60]}` does not fit: {_message(exc)}")
            continue
        yield f"llm_profiles.{name}", partial(save_profile, name=name, llm=llm)


def _message(exc: Exception) -> str:
    return exc.message if isinstance(exc, InvalidRequest) else str(exc)
