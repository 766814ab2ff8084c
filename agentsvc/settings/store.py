"""The settings of users: merging of changes, conversion for clients, and storage.

A change keeps all fields that it does not mention. One record serves both API generations: it has
the flat field names of V0, and further fields that only V1 has.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from agentsvc.base import MASK, InvalidRequest, Problems, Secret, has_control, values
from agentsvc.domain import Llm, encode_revealed, restore_secrets, revealed_decoder, show_mcp_config
from agentsvc.settings.fields import (
    CHECKS,
    FLAT_FIELDS,
    KEPT_ON_NULL,
    MAX_TEXT,
    SECRET_FIELDS,
    Settings,
    SettingsPatch,
)
from agentsvc.settings.secret_store import apply_secrets
from agentsvc.settings.user_secrets import SecretsPatch
from agentsvc.storage import Database, Queryable, Transaction, Vault, note_effect

MAX_RECORD_BYTES: Final = 2**20
"""The largest record, because each change and each start reads all of it."""

_DEFAULTS: Final = Settings()
_HIDDEN: Final = dict.fromkeys(SECRET_FIELDS)


def merge(old: Settings, patch: SettingsPatch) -> Settings:
    """Return the settings with a patch applied.

    Raises InvalidRequest for a mask without a stored secret, and for an invalid new value; a value
    that is already stored is accepted. The secrets in `secrets_store` are not part of the record:
    `SettingsStore` applies them.
    """
    changes: dict[str, Any] = {}
    problems = Problems()
    for name in FLAT_FIELDS:
        given = getattr(patch, name)
        is_kept = name in KEPT_ON_NULL and _is_unchanged(given)
        if given is UNSET or is_kept or given == getattr(old, name):
            continue
        empty = given is None or (isinstance(given, str | Secret) and not given)
        changes[name] = getattr(_DEFAULTS, name) if empty else given
        if not empty and name in CHECKS:
            with problems.noted():
                CHECKS[name](given, loc=("body", name))
    problems.refuse()
    mcp_config = changes.get("mcp_config")
    if mcp_config is not None:
        changes["mcp_config"] = restore_secrets(mcp_config, old.mcp_config)
    return msgspec.structs.replace(old, **changes)


def check_patch(patch: SettingsPatch, *, loc: Sequence[str | int] = ("body",)) -> None:
    """Raise InvalidRequest, with the location of each field, for texts that cannot be stored.

    Other limits are in the types of the fields.
    """
    problems = Problems()
    for name in FLAT_FIELDS:
        found = (_problem(text) for text in _texts(getattr(patch, name)))
        if problem := next(filter(None, found), ""):
            problems.note(f"{name} {problem}", loc=(*loc, name))
    problems.refuse()


def show_settings(settings: Settings) -> dict[str, Any]:
    """Return the flat fields as clients read them: JSON values, without secrets.

    A client that sends them back changes nothing.
    """
    fields = msgspec.structs.asdict(settings)
    shown = {name: fields[name] for name in FLAT_FIELDS} | _HIDDEN
    if settings.mcp_config is not None:
        shown["mcp_config"] = show_mcp_config(settings.mcp_config)
    if settings.disabled_skills is not None:
        shown["disabled_skills"] = list(settings.disabled_skills)
    return shown


def llm_of(settings: Settings) -> Llm:
    """Return the language model of the settings."""
    return Llm(
        model=settings.llm_model,
        api_key=settings.llm_api_key,
        base_url=settings.llm_base_url,
        options=settings.llm_options,
    )


class SettingsStore:
    """Stores the settings of users, encrypted."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def find(self, user_id: str) -> Settings | None:
        """Return the settings of a user, or None if the user has never saved any."""
        return await self._db.keep((SettingsStore, user_id), lambda: self._load(self._db, user_id))

    async def get(self, user_id: str) -> Settings:
        """Return the settings of a user, or the defaults if the user has never saved any."""
        return await self.find(user_id) or _DEFAULTS

    async def patch(self, user_id: str, patch: SettingsPatch) -> Settings:
        """Apply a patch, including secrets, in one transaction; return the new settings.

        Raises InvalidRequest for a text that cannot be stored, a mask without a stored secret, an
        invalid value, and a record that is too large.
        """
        check_patch(patch)

        async def body(tx: Transaction) -> Settings:
            old = await self._load(tx, user_id) or _DEFAULTS
            settings = merge(old, patch)
            await self._save(tx, user_id, settings, old)
            if patch.secrets_store is not UNSET:
                await apply_secrets(tx, self._vault, user_id, patch.secrets_store)
            return settings

        return await self._db.write_apart(body)

    async def change(
        self,
        user_id: str,
        change: Callable[[Settings | None], Settings],
        *,
        secrets: SecretsPatch | None = None,
    ) -> Settings:
        """Apply a pure function to the settings in one transaction; return the new settings.

        The function gets None if the user has never saved any; its errors roll back. `secrets` are
        applied in the same transaction. Raises InvalidRequest for a record that is too large.
        """

        async def body(tx: Transaction) -> Settings:
            old = await self._load(tx, user_id)
            settings = change(old)
            if settings != old:
                await self._save(tx, user_id, settings, old or _DEFAULTS)
            if secrets is not None:
                await apply_secrets(tx, self._vault, user_id, secrets)
            await note_effect(tx, settings)
            return settings

        return await self._db.write(body)

    async def _save(self, tx: Transaction, user_id: str, settings: Settings, old: Settings) -> None:
        record = encode_revealed(settings)
        # A record from an earlier version that is larger may shrink step by step.
        if len(record) > MAX_RECORD_BYTES and len(record) > len(encode_revealed(old)):
            raise InvalidRequest(
                "The settings of a user have at most 1 MiB, saved models included", loc=("body",)
            )
        sealed = self._vault.seal(record, _context(user_id))
        row = {"user_id": user_id, "sealed": sealed, "updated_at": values.to_stored(values.now())}
        await tx.insert("settings", row, _ON_CONFLICT)

    async def _load(self, reader: Queryable, user_id: str) -> Settings | None:
        sql = "SELECT sealed FROM settings WHERE user_id = :user_id"
        sealed = await reader.value(sql, {"user_id": user_id})
        if sealed is None:
            return None
        return _DECODER.decode(self._vault.unseal(sealed, _context(user_id)))


_ON_CONFLICT: Final = (
    "ON CONFLICT (user_id) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at"
)


def _context(user_id: str) -> str:
    return f"settings/{user_id}"


def _is_unchanged(given: object) -> bool:
    return given is None or (isinstance(given, Secret) and given.reveal() == MASK)


def _texts(given: object) -> Sequence[str]:
    """Return the strings in the value of a field."""
    match given:
        case str():
            return (given,)
        case Secret():
            return (given.reveal(),)
        case tuple():
            return given
        case _:
            return ()


def _problem(text: str) -> str:
    """Return the problem of a text, or an empty string."""
    if len(text) > MAX_TEXT:
        return f"must not be longer than {MAX_TEXT} characters"
    return "must not contain control characters" if has_control(text) else ""


_DECODER = revealed_decoder(Settings)
