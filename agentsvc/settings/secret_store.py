"""Storage of the secrets of users: tokens of git providers, and custom secrets.

Values are returned only as `Secret`, and are encrypted in the database.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentsvc.base import MASK, Conflict, InvalidRequest, NotFound, Secret, values
from agentsvc.domain import Provider
from agentsvc.settings.user_secrets import (
    SECRETS_MAX,
    CustomSecret,
    CustomSecretPatch,
    ProviderToken,
    ProviderTokenPatch,
    SecretsPatch,
    check_secret_name,
    check_secret_value,
    merge_secret,
    merge_token,
)
from agentsvc.storage import Database, Queryable, Row, Transaction, Vault, note_effect


class SecretStore:
    """Reads and changes the secrets of users."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def provider_tokens(self, user_id: str) -> dict[str, ProviderToken]:
        """Return the provider tokens of a user, by provider."""
        rows = await _find_all(self._db, user_id, _Kind.PROVIDER)
        return {row["name"]: _to_token(row, self._vault) for row in rows}

    async def find_provider_token(self, user_id: str, provider: str) -> ProviderToken | None:
        """Return the token for one provider, or None."""
        row = await self._db.read(lambda r: _find(r, user_id, _Kind.PROVIDER, provider))
        return _to_token(row, self._vault) if row else None

    async def provider_hosts(self, user_id: str) -> dict[str, str | None]:
        """Return the hosts of a user's providers, by provider; decrypts nothing."""
        key = (SecretStore.provider_hosts, user_id)
        rows = await self._db.keep(
            key, lambda: _find_all(self._db, user_id, _Kind.PROVIDER), weigh=len
        )
        return {row["name"]: row["host"] for row in rows}

    async def custom_secrets(self, user_id: str) -> dict[str, CustomSecret]:
        """Return the custom secrets of a user by name."""
        rows = await _find_all(self._db, user_id, _Kind.CUSTOM)
        return {row["name"]: _to_custom(row, self._vault) for row in rows}

    async def custom_secret_names(self, user_id: str) -> dict[str, str | None]:
        """Return the descriptions of a user's custom secrets, by name; decrypts nothing."""
        sql = (
            "SELECT name, description FROM secrets"
            " WHERE user_id = :user_id AND kind = :kind ORDER BY name"
        )
        rows = await self._db.all(sql, {"user_id": user_id, "kind": _Kind.CUSTOM})
        return {row["name"]: row["description"] for row in rows}

    async def patch(self, user_id: str, patch: SecretsPatch) -> None:
        """Apply a patch in one transaction; raises as `apply_secrets`."""
        await self._db.write(lambda tx: apply_secrets(tx, self._vault, user_id, patch))

    async def set_custom_secret(
        self, user_id: str, name: str, value: Secret, description: str | None = None
    ) -> None:
        """Store a custom secret; overwrite one of the same name.

        Raises InvalidRequest for a name or value that cannot be an environment variable.
        """
        _check_secret(name, value)
        patch = CustomSecretPatch(value=value, description=description)
        await self.patch(user_id, SecretsPatch(custom_secrets={name: patch}))

    async def add_custom_secret(
        self, user_id: str, name: str, value: Secret, description: str | None = None
    ) -> None:
        """Store a new custom secret; raises Conflict if the name exists.

        Raises InvalidRequest as `set_custom_secret`.
        """
        _check_secret(name, value)
        patch = CustomSecretPatch(value=value, description=description)

        async def body(tx: Transaction) -> None:
            await _require_free(tx, user_id, name)
            await apply_secrets(
                tx, self._vault, user_id, SecretsPatch(custom_secrets={name: patch})
            )
            await note_effect(tx, name)

        await self._db.write(body)

    async def rename_custom_secret(
        self, user_id: str, name: str, new_name: str, description: str | None
    ) -> None:
        """Set the name, perhaps the same, and the description of a custom secret; keep its value.

        Raises NotFound, Conflict if another secret has the new name, and InvalidRequest for a
        name that cannot be an environment variable.
        """
        check_secret_name(new_name)

        async def body(tx: Transaction) -> None:
            row = await _find(tx, user_id, _Kind.CUSTOM, name)
            if row is None:
                raise NotFound(f"Secret with ID {name} not found")
            if new_name != name:
                await _require_free(tx, user_id, new_name)
                await _delete(tx, user_id, _Kind.CUSTOM, name)
            secret = CustomSecret(value=_to_custom(row, self._vault).value, description=description)
            await _put_secret(tx, self._vault, user_id, new_name, secret)

        await self._db.write(body)

    async def set_provider_tokens(
        self, user_id: str, tokens: Mapping[Provider, ProviderTokenPatch]
    ) -> None:
        """Replace the provider tokens of a user; tokens of other providers are deleted."""

        async def body(tx: Transaction) -> None:
            for row in await _find_all(tx, user_id, _Kind.PROVIDER):
                if row["name"] not in tokens:
                    await _delete(tx, user_id, _Kind.PROVIDER, row["name"])
            patch = SecretsPatch(provider_tokens=dict(tokens))
            await apply_secrets(tx, self._vault, user_id, patch)

        await self._db.write(body)

    async def delete_custom_secret(self, user_id: str, name: str) -> bool:
        """Delete a custom secret; return whether it existed."""
        deleted = await self._db.write(lambda tx: _delete(tx, user_id, _Kind.CUSTOM, name))
        return deleted > 0

    async def delete_provider_tokens(self, user_id: str) -> None:
        """Delete all provider tokens of a user."""
        await self.set_provider_tokens(user_id, {})


async def apply_secrets(tx: Transaction, vault: Vault, user_id: str, patch: SecretsPatch) -> None:
    """Apply a patch of secrets in the caller's transaction.

    An entry without a value keeps the stored value; it is ignored if there is none. Raises
    InvalidRequest for a mask without a stored secret, and for more secrets than a user may have.
    """
    for provider, token_patch in patch.provider_tokens.items():
        row = await _find(tx, user_id, _Kind.PROVIDER, provider)
        token = merge_token(_to_token(row, vault) if row else None, token_patch)
        if token is not None:
            await _put_token(tx, vault, user_id, provider, token)
        elif token_patch.token:
            raise _mask_without_secret(provider)
    for name, secret_patch in patch.custom_secrets.items():
        row = await _find(tx, user_id, _Kind.CUSTOM, name)
        secret = merge_secret(_to_custom(row, vault) if row else None, secret_patch)
        if secret is not None:
            if row is None:
                await _require_room(tx, user_id)
            await _put_secret(tx, vault, user_id, name, secret)
        elif secret_patch.value:
            raise _mask_without_secret(name)


def _mask_without_secret(name: str) -> InvalidRequest:
    text = f"`{MASK}` stands for a stored secret, and none is stored: `{name}`"
    return InvalidRequest(text, loc=("body",))


async def _require_room(tx: Transaction, user_id: str) -> None:
    sql = "SELECT COUNT(*) FROM secrets WHERE user_id = :user_id AND kind = :kind"
    count = await tx.value(sql, {"user_id": user_id, "kind": _Kind.CUSTOM})
    if count is not None and count >= SECRETS_MAX:
        raise InvalidRequest(f"A user has at most {SECRETS_MAX} secrets", loc=("body",))


def _check_secret(name: str, value: Secret) -> None:
    check_secret_name(name)
    check_secret_value(value)
    if not value:
        raise InvalidRequest("The secret must not be empty", loc=("body", "value"))


async def _require_free(tx: Transaction, user_id: str, name: str) -> None:
    if await _find(tx, user_id, _Kind.CUSTOM, name) is not None:
        raise Conflict(f"Secret {name} already exists")


# Rows


class _Kind(StrEnum):
    CUSTOM = "custom"
    PROVIDER = "provider"


class _Sealed(Struct, frozen=True, kw_only=True):
    """The encrypted part of a secret."""

    value: str
    account: str | None = None


_ENCODER = msgspec.json.Encoder()
_SEALED = msgspec.json.Decoder(_Sealed)


_SECRETS: Final = "SELECT user_id, kind, name, sealed, description, host FROM secrets"
_ON_CONFLICT: Final = """
    ON CONFLICT (user_id, kind, name) DO UPDATE
    SET sealed = excluded.sealed,
        description = excluded.description,
        host = excluded.host,
        updated_at = excluded.updated_at
"""


async def _find_all(reader: Queryable, user_id: str, kind: str) -> list[Row]:
    """Return all rows of a kind, sorted by name."""
    sql = _SECRETS + " WHERE user_id = :user_id AND kind = :kind ORDER BY name"
    return await reader.all(sql, {"user_id": user_id, "kind": kind})


async def _find(reader: Queryable, user_id: str, kind: str, name: str) -> Row | None:
    sql = _SECRETS + " WHERE user_id = :user_id AND kind = :kind AND name = :name"
    return await reader.one(sql, {"user_id": user_id, "kind": kind, "name": name})


async def _delete(tx: Transaction, user_id: str, kind: str, name: str) -> int:
    sql = "DELETE FROM secrets WHERE user_id = :user_id AND kind = :kind AND name = :name"
    return await tx.run(sql, {"user_id": user_id, "kind": kind, "name": name})


async def _put_token(
    tx: Transaction, vault: Vault, user_id: str, provider: str, token: ProviderToken
) -> None:
    sealed = _Sealed(value=token.token.reveal(), account=token.user_id)
    row = _to_row(vault, user_id, _Kind.PROVIDER, provider, sealed)
    await tx.insert("secrets", {**row, "host": token.host}, _ON_CONFLICT)


async def _put_secret(
    tx: Transaction, vault: Vault, user_id: str, name: str, secret: CustomSecret
) -> None:
    row = _to_row(vault, user_id, _Kind.CUSTOM, name, _Sealed(value=secret.value.reveal()))
    await tx.insert("secrets", {**row, "description": secret.description}, _ON_CONFLICT)


def _to_row(vault: Vault, user_id: str, kind: _Kind, name: str, sealed: _Sealed) -> dict[str, Any]:
    moment = values.to_stored(values.now())
    return {
        "user_id": user_id,
        "kind": kind.value,
        "name": str(name),
        "sealed": vault.seal(_ENCODER.encode(sealed), _context(user_id, kind, name)),
        "created_at": moment,
        "updated_at": moment,
    }


def _unseal(row: Row, vault: Vault) -> _Sealed:
    context = _context(row["user_id"], row["kind"], row["name"])
    return _SEALED.decode(vault.unseal(row["sealed"], context))


def _to_token(row: Row, vault: Vault) -> ProviderToken:
    sealed = _unseal(row, vault)
    return ProviderToken(token=Secret(sealed.value), host=row["host"], user_id=sealed.account)


def _to_custom(row: Row, vault: Vault) -> CustomSecret:
    return CustomSecret(value=Secret(_unseal(row, vault).value), description=row["description"])


def _context(user_id: str, kind: str, name: str) -> str:
    return f"secrets/{user_id}/{kind}/{name}"
