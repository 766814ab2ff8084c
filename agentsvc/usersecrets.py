"""What the secrets of a user are, and how a change to them is read, checked and applied.

Pure; `secretstore` keeps them. Everything stored reaches the user's sandboxes, so the names are
checked on the way in.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from agentsvc import git
from agentsvc.errors import InvalidRequest
from agentsvc.misfits import Problems, convert
from agentsvc.orders import Provider
from agentsvc.values import MASK, Secret, has_control

MAX_NAME_LENGTH: Final = 256
MAX_VALUE_BYTES: Final = 64 * 1024

RESERVED_NAMES: Final = frozenset(
    {
        "ENV_LOG_LEVEL",
        "LOG_JSON",
        "OH_ALLOW_CORS_ORIGINS_0",
        "OH_BASH_EVENTS_DIR",
        "OH_CONVERSATIONS_PATH",
        "OH_ENABLE_VNC",
        "OH_WEBHOOKS_0_BASE_URL",
        "OPENVSCODE_SERVER_ROOT",
        "PYTHONUNBUFFERED",
        "WORKER_1",
        "WORKER_2",
    }
)
"""Variables the agent server is set up with; a secret of that name would break it."""

RESERVED_PREFIX: Final = "LLM_"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ProviderToken(Struct, frozen=True, kw_only=True):
    """A token for a git provider."""

    token: Secret
    host: str | None = None
    """Where the provider is, if not at its usual host."""
    user_id: str | None = None
    """The user's name at the provider."""


class CustomSecret(Struct, frozen=True, kw_only=True):
    """A secret the user wants the agent to have."""

    value: Secret
    description: str | None = None


class ProviderTokenPatch(Struct, frozen=True, kw_only=True):
    """A change to one provider's token; no token or an empty one keeps the stored one."""

    token: Secret | None = None
    host: str | UnsetType | None = UNSET
    user_id: str | UnsetType | None = UNSET


class CustomSecretPatch(Struct, frozen=True, kw_only=True):
    """A change to one custom secret; no value or an empty one keeps the stored one."""

    value: Secret | None = None
    description: str | UnsetType | None = UNSET


class SecretsPatch(Struct, frozen=True, kw_only=True):
    """Changes to several secrets; those not mentioned stay as they are."""

    provider_tokens: dict[Provider, ProviderTokenPatch] = {}
    custom_secrets: dict[str, CustomSecretPatch] = {}


def merge_token(old: ProviderToken | None, patch: ProviderTokenPatch) -> ProviderToken | None:
    """Return the token after a change, or None if there is none before or after."""
    token = _kept(patch.token, old.token if old else None)
    if token is None:
        return None
    old = old or ProviderToken(token=token)
    return ProviderToken(
        token=token,
        host=old.host if patch.host is UNSET else patch.host or None,
        user_id=old.user_id if patch.user_id is UNSET else patch.user_id or None,
    )


def merge_secret(old: CustomSecret | None, patch: CustomSecretPatch) -> CustomSecret | None:
    """Return the custom secret after a change, or None if there is none before or after."""
    value = _kept(patch.value, old.value if old else None)
    if value is None:
        return None
    old = old or CustomSecret(value=value)
    description = old.description if patch.description is UNSET else patch.description
    return CustomSecret(value=value, description=description)


def check_secret_name(name: str, *, loc: Sequence[str | int] = ("body", "name")) -> None:
    """Raise InvalidRequest unless a secret of this name can be a variable in a sandbox."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "The name of a secret has letters, digits and `_`, and no digit in front", loc=loc
        )
    if name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(f"The name is reserved for the sandbox itself: `{name}`", loc=loc)


def check_secret_value(value: Secret, *, loc: Sequence[str | int] = ("body", "value")) -> None:
    """Raise InvalidRequest unless a secret fits into a variable."""
    if len(value.reveal().encode()) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"The secret is longer than {MAX_VALUE_BYTES} bytes", loc=loc)
    if "\0" in value.reveal():
        raise InvalidRequest("The secret must not contain NUL", loc=loc)


# As clients send it

_Text = Annotated[str, Meta(max_length=1024)]


class _TokenWire(Struct, frozen=True, kw_only=True):
    token: str | None = None
    host: _Text | UnsetType | None = UNSET
    user_id: _Text | UnsetType | None = UNSET


class _SecretWire(Struct, frozen=True, kw_only=True):
    secret: str | None = None
    description: Annotated[str, Meta(max_length=4096)] | UnsetType | None = UNSET


class _StoreWire(Struct, frozen=True, kw_only=True):
    provider_tokens: dict[str, Any] | None = None
    custom_secrets: dict[str, Any] | None = None


def read_secrets(raw: Any, *, loc: Sequence[str | int] = ("body", "secrets_store")) -> SecretsPatch:
    """Return the changes a decoded `secrets_store` asks for; raises InvalidRequest.

    A plain string stands for a token or a value alone, as older clients send it.
    """
    store = convert({} if raw is None else raw, _StoreWire, loc=loc)
    problems = Problems()
    tokens: dict[Provider, ProviderTokenPatch] = {}
    with problems.noted():
        tokens = read_provider_tokens(store.provider_tokens or {}, loc=(*loc, "provider_tokens"))
    customs: dict[str, CustomSecretPatch] = {}
    for name, item in (store.custom_secrets or {}).items():
        with problems.noted():
            customs[name] = _read_custom(name, item, (*loc, "custom_secrets", name))
    problems.refuse()
    return SecretsPatch(provider_tokens=tokens, custom_secrets=customs)


def read_provider_tokens(
    raw: Mapping[str, Any], *, loc: Sequence[str | int] = ("body", "provider_tokens")
) -> dict[Provider, ProviderTokenPatch]:
    """Return the changes a decoded map of provider tokens asks for; raises InvalidRequest."""
    found: dict[Provider, ProviderTokenPatch] = {}
    problems = Problems()
    for name, item in raw.items():
        with problems.noted():
            found[_read_provider(name, (*loc, name))] = _read_token(item, (*loc, name))
    problems.refuse()
    return found


def _read_provider(name: str, loc: tuple[str | int, ...]) -> Provider:
    try:
        return Provider(name)
    except ValueError as exc:
        known = ", ".join(f"`{provider}`" for provider in Provider)
        raise InvalidRequest(f"A provider is one of {known}", loc=loc, kind="enum") from exc


def _read_token(raw: Any, loc: tuple[str | int, ...]) -> ProviderTokenPatch:
    wire = convert({"token": raw} if isinstance(raw, str) else raw, _TokenWire, loc=loc)
    token = Secret((wire.token or "").strip())
    check_secret_value(token, loc=(*loc, "token"))
    if has_control(token.reveal()):
        # It goes into headers, and into git's line by line talk about credentials.
        raise InvalidRequest("A token must not contain control characters", loc=(*loc, "token"))
    if wire.host:
        git.check_host(wire.host, loc=(*loc, "host"))
    return ProviderTokenPatch(token=token or None, host=wire.host, user_id=wire.user_id)


def _read_custom(name: str, raw: Any, loc: tuple[str | int, ...]) -> CustomSecretPatch:
    problems = Problems()
    with problems.noted():
        check_secret_name(name, loc=loc)
    with problems.noted():
        found = _read_value(raw, loc)
    problems.refuse()
    return found


def _read_value(raw: Any, loc: tuple[str | int, ...]) -> CustomSecretPatch:
    wire = convert({"secret": raw} if isinstance(raw, str) else raw, _SecretWire, loc=loc)
    value = Secret(wire.secret or "")
    check_secret_value(value, loc=(*loc, "secret"))
    return CustomSecretPatch(value=value or None, description=wire.description)


def _kept(given: Secret | None, stored: Secret | None) -> Secret | None:
    return given if given and given.reveal() != MASK else stored
