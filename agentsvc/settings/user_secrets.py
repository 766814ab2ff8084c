"""User secrets and provider tokens: validation and merging of changes.

Pure; `secret_store` stores them. All secrets become environment variables in the user's sandboxes,
so their names are validated before they are stored.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from agentsvc.base import (
    GIT_HOST,
    MASK,
    InvalidRequest,
    Problems,
    Secret,
    SentSecret,
    convert,
    has_control,
    stated,
    with_check,
)
from agentsvc.domain import Provider
from agentsvc.domain import repositories as git

MAX_NAME_LENGTH: Final = 256
MAX_VALUE_BYTES: Final = 64 * 1024
SECRETS_MAX: Final = 1000
"""The most secrets of a user, because each start reads all of them."""

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
"""Environment variables that configure the agent server; a secret of that name would break it."""

_RESERVED_PREFIX: Final = "LLM_"

_NAME_PATTERN: Final = r"\A[A-Za-z_][A-Za-z0-9_]*\Z"
_NAME = re.compile(_NAME_PATTERN)


class ProviderToken(Struct, frozen=True, kw_only=True):
    """A token for a git provider."""

    token: Secret
    host: str | None = None
    """The host of the provider, if not its default host."""
    user_id: str | None = None
    """The user's name at the provider."""


class CustomSecret(Struct, frozen=True, kw_only=True):
    """A secret of a user that agents may read."""

    value: Secret
    description: str | None = None


class ProviderTokenPatch(Struct, frozen=True, kw_only=True):
    """A change of a provider token; without a token, the stored one is kept."""

    token: Secret | None = None
    host: str | UnsetType | None = UNSET
    user_id: str | UnsetType | None = UNSET


class CustomSecretPatch(Struct, frozen=True, kw_only=True):
    """A change of a custom secret; without a value, the stored one is kept."""

    value: Secret | None = None
    description: str | UnsetType | None = UNSET


class SecretsPatch(Struct, frozen=True, kw_only=True):
    """Changes of several secrets; others are not changed."""

    provider_tokens: dict[Provider, ProviderTokenPatch] = {}
    custom_secrets: dict[str, CustomSecretPatch] = {}


def merge_token(old: ProviderToken | None, patch: ProviderTokenPatch) -> ProviderToken | None:
    """Return the token with a patch applied, or None if neither has a token."""
    token = _new_or_stored(patch.token, old.token if old else None)
    if token is None:
        return None
    old = old or ProviderToken(token=token)
    return ProviderToken(
        token=token,
        host=old.host if patch.host is UNSET else patch.host or None,
        user_id=old.user_id if patch.user_id is UNSET else patch.user_id or None,
    )


def merge_secret(old: CustomSecret | None, patch: CustomSecretPatch) -> CustomSecret | None:
    """Return the custom secret with a patch applied, or None if neither has a value."""
    value = _new_or_stored(patch.value, old.value if old else None)
    if value is None:
        return None
    old = old or CustomSecret(value=value)
    description = old.description if patch.description is UNSET else patch.description
    return CustomSecret(value=value, description=description)


def is_reserved(name: str) -> bool:
    """Return whether a name is reserved for an environment variable of the sandbox itself."""
    return name in RESERVED_NAMES or name.startswith(_RESERVED_PREFIX)


def check_secret_name(name: str, *, loc: Sequence[str | int] = ("body", "name")) -> None:
    """Raise InvalidRequest unless a name can be that of an environment variable in a sandbox."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise InvalidRequest(
            "The name of a secret has letters, digits and `_`, and no digit in front", loc=loc
        )
    if is_reserved(name):
        raise InvalidRequest(f"The name is reserved for the sandbox itself: `{name}`", loc=loc)


def check_secret_value(value: Secret, *, loc: Sequence[str | int] = ("body", "value")) -> None:
    """Raise InvalidRequest unless a value can be that of an environment variable."""
    if len(value.reveal().encode()) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"The secret is longer than {MAX_VALUE_BYTES} bytes", loc=loc)
    if "\0" in value.reveal():
        raise InvalidRequest("The secret must not contain NUL", loc=loc)


# As clients send them

type Loc = tuple[str | int, ...]

_RESERVED: Final = {"pattern": rf"\A(?:{_RESERVED_PREFIX}.*|{'|'.join(sorted(RESERVED_NAMES))})\Z"}


def _check_value(raw: str, *, loc: Loc) -> None:
    check_secret_value(Secret(raw), loc=loc)


type VariableName = Annotated[
    str,
    stated(pattern=_NAME_PATTERN, maxLength=MAX_NAME_LENGTH, **{"not": _RESERVED}),
    with_check(check_secret_name),
]
"""The name of a secret in requests."""
type VariableValue = Annotated[
    SentSecret,
    stated(pattern=r"\A[^\0]*\Z", maxLength=MAX_VALUE_BYTES),
    with_check(_check_value),
]
"""The value of a secret in requests; its length is measured in UTF-8, see `check_secret_value`."""
_Text = Annotated[str, Meta(max_length=1024)]
# It becomes part of a URL, which may have up to 1024 characters.
_Host = Annotated[str, Meta(max_length=1000), stated(pattern=rf"\A(?:{GIT_HOST})?\Z")]


class ProviderTokenBody(Struct, frozen=True, kw_only=True):
    """A token for a git provider; with an empty one, the stored one is kept."""

    token: SentSecret | None = None
    """The token; empty, null or omitted: the stored one is kept"""
    host: _Host | UnsetType | None = UNSET
    """Host of the provider, if not the default one; null: the default one, omitted: unchanged"""
    user_id: _Text | UnsetType | None = UNSET
    """Name of the account, for providers that need it; null: none, omitted: unchanged"""


class CustomSecretBody(Struct, frozen=True, kw_only=True):
    """A secret; with an empty value, the stored one is kept."""

    secret: SentSecret | None = None
    """The value, at most 64 KiB; empty, null or omitted: the stored one is kept"""
    description: Annotated[str, Meta(max_length=4096)] | UnsetType | None = UNSET
    """Description of the secret for the agent, at most 4096 characters. Null: none, omitted:
    unchanged"""


def _check_token(raw: Any, *, loc: Loc) -> None:
    _to_token(raw if isinstance(raw, str) else convert(raw, ProviderTokenBody, loc=loc), loc)


def _check_custom(raw: Any, *, loc: Loc) -> None:
    _to_custom(raw if isinstance(raw, str) else convert(raw, CustomSecretBody, loc=loc), loc)


type ProviderTokens = Annotated[
    dict[Provider, Annotated[ProviderTokenBody | SentSecret, with_check(_check_token)]],
    stated(propertyNames={"enum": [provider.value for provider in Provider]}),
]
"""Tokens by provider; a string is the token itself."""


class SecretsStoreBody(Struct, frozen=True, kw_only=True):
    """Secrets and tokens by name; a string is the secret itself."""

    provider_tokens: ProviderTokens | None = None
    """Tokens by provider; null: no change"""
    custom_secrets: (
        Annotated[
            dict[VariableName, Annotated[CustomSecretBody | SentSecret, with_check(_check_custom)]],
            Meta(max_length=SECRETS_MAX),
        ]
        | None
    ) = None
    """At most 1000 secrets by the name of the environment variable; null: no change"""


def read_secrets(raw: Any) -> SecretsPatch:
    """Convert a JSON `secrets_store` to a patch; raises InvalidRequest."""
    return to_secrets_patch(
        convert({} if raw is None else raw, SecretsStoreBody, loc=("body", "secrets_store"))
    )


def to_secrets_patch(store: SecretsStoreBody | None) -> SecretsPatch:
    """Convert a `secrets_store` to a patch; raises InvalidRequest."""
    loc = ("body", "secrets_store")
    problems = Problems()
    tokens: dict[Provider, ProviderTokenPatch] = {}
    customs: dict[str, CustomSecretPatch] = {}
    store = store or SecretsStoreBody()
    with problems.noted():
        tokens = to_token_patches(store.provider_tokens or {}, loc=(*loc, "provider_tokens"))
    for name, item in (store.custom_secrets or {}).items():
        where = (*loc, "custom_secrets", name)
        with problems.noted():
            check_secret_name(name, loc=where)
        with problems.noted():
            customs[name] = _to_custom(item, where)
    problems.refuse()
    return SecretsPatch(provider_tokens=tokens, custom_secrets=customs)


def to_token_patches(
    given: ProviderTokens, *, loc: Loc = ("body", "provider_tokens")
) -> dict[Provider, ProviderTokenPatch]:
    """Convert provider tokens to patches; raises InvalidRequest."""
    found: dict[Provider, ProviderTokenPatch] = {}
    problems = Problems()
    for name, item in given.items():
        with problems.noted():
            found[name] = _to_token(item, (*loc, name))
    problems.refuse()
    return found


def _to_token(given: ProviderTokenBody | str, loc: Loc) -> ProviderTokenPatch:
    wire = ProviderTokenBody(token=given) if isinstance(given, str) else given
    token = Secret((wire.token or "").strip())
    check_secret_value(token, loc=(*loc, "token"))
    if has_control(token.reveal()):
        # It is sent in headers, and in git's credential protocol, which has one value a line.
        raise InvalidRequest("A token must not contain control characters", loc=(*loc, "token"))
    if wire.host:
        git.check_host(wire.host, loc=(*loc, "host"))
    return ProviderTokenPatch(token=token or None, host=wire.host, user_id=wire.user_id)


def _to_custom(given: CustomSecretBody | str, loc: Loc) -> CustomSecretPatch:
    wire = CustomSecretBody(secret=given) if isinstance(given, str) else given
    value = Secret(wire.secret or "")
    check_secret_value(value, loc=(*loc, "secret"))
    return CustomSecretPatch(value=value or None, description=wire.description)


def _new_or_stored(given: Secret | None, stored: Secret | None) -> Secret | None:
    return given if given and given.reveal() != MASK else stored
