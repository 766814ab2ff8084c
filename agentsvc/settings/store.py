"""The settings of a user: what they are, how a change applies to them, where they are kept.

A change never loses what it does not mention. One record serves both API generations: it is flat
under the names of the first one, and holds beside them what only the second one can say.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from agentsvc.base import (
    HTTP_URL,
    MASK,
    MAX_INT,
    NO_CONTROL,
    InvalidRequest,
    Problems,
    Secret,
    SentSecret,
    checked_by,
    has_control,
    stated,
    values,
)
from agentsvc.domain import (
    AgentOptions,
    Llm,
    LlmOptions,
    McpConfig,
    restore_secrets,
    show_mcp_config,
)
from agentsvc.plugin import IdleRules
from agentsvc.settings.secret_store import SecretStore, apply_secrets
from agentsvc.settings.user_secrets import CustomSecret, ProviderToken, SecretsPatch
from agentsvc.storage import Database, Queryable, Row, Transaction, Vault, note_effect

__all__ = [
    "AGENTS",
    "FLAT_FIELDS",
    "SECURITY_ANALYZERS",
    "CustomSecret",
    "GroupingStrategy",
    "ProviderToken",
    "SecretStore",
    "SecretsPatch",
    "Settings",
    "SettingsPatch",
    "SettingsStore",
    "check_base_url",
    "check_patch",
    "llm_of",
    "merge",
    "show_settings",
]

SECRET_FIELDS: Final = frozenset({"llm_api_key", "search_api_key", "sandbox_api_key"})
"""Fields that are never shown."""

KEPT_ON_NULL: Final = SECRET_FIELDS | {"llm_model", "llm_base_url"}
"""Fields that null leaves alone: clients send back what they read, and that has no secrets."""

LEAST: Final = {
    "max_iterations": 1,
    "condenser_max_size": 20,
    "remote_runtime_resource_factor": 1,
    "user_version": 0,
}
"""The smallest value of every whole number."""

AGENTS: Final = ("CodeActAgent",)
"""The agents there are."""

SECURITY_ANALYZERS: Final = ("llm", "none")
"""Who can rate the risk of an action; `none` is nobody."""

_MAX_TEXT: Final = 4096
_MAX_SKILLS: Final = 1000
_BASE_URL: Final = re.compile(HTTP_URL)


def check_base_url(url: str | None, *, loc: Sequence[str | int]) -> None:
    """Raise InvalidRequest unless a language model can be at a URL; none is fine."""
    if url and not _BASE_URL.fullmatch(url):
        raise InvalidRequest(
            "Input should be a URL of http or https, such as `http://localhost:11434/v1`",
            loc=loc,
            kind="url_parsing",
        )


def _check_agent(name: str | None, *, loc: Sequence[str | int]) -> None:
    _check_choice(name, AGENTS, loc)


def _check_analyzer(name: str | None, *, loc: Sequence[str | int]) -> None:
    _check_choice(name, SECURITY_ANALYZERS, loc)


def _check_choice(name: str | None, choices: tuple[str, ...], loc: Sequence[str | int]) -> None:
    if name and name not in choices:
        known = " or ".join(f"`{one}`" for one in choices)
        raise InvalidRequest(f"Input should be {known}", loc=loc, kind="enum")


_CHECKS: Final[dict[str, Callable[..., None]]] = {
    "agent": _check_agent,
    "security_analyzer": _check_analyzer,
    "llm_base_url": check_base_url,
}
"""By field, what raises InvalidRequest for a value that fits, and that nothing could be done with."""

# As clients send it

type FlatText = Annotated[str, Meta(max_length=_MAX_TEXT), stated(pattern=NO_CONTROL)]
type FlatSecret = Annotated[SentSecret, Meta(max_length=_MAX_TEXT), stated(pattern=NO_CONTROL)]
type BaseUrl = Annotated[
    str,
    Meta(max_length=_MAX_TEXT),
    stated(pattern=rf"\A(?:{HTTP_URL})?\Z"),
    checked_by(check_base_url),
]
type AgentName = Annotated[str, stated(enum=[*AGENTS, ""]), checked_by(_check_agent)]
type AnalyzerName = Annotated[
    str, stated(enum=[*SECURITY_ANALYZERS, ""]), checked_by(_check_analyzer)
]
type Iterations = Annotated[int, Meta(ge=LEAST["max_iterations"], le=MAX_INT)]
type CondenserSize = Annotated[int, Meta(ge=LEAST["condenser_max_size"], le=MAX_INT)]
type ResourceFactor = Annotated[int, Meta(ge=LEAST["remote_runtime_resource_factor"], le=MAX_INT)]
type UserVersion = Annotated[int, Meta(ge=LEAST["user_version"], le=MAX_INT)]
type Budget = Annotated[float, Meta(gt=0)]
type Skills = Annotated[tuple[FlatText, ...], Meta(max_length=_MAX_SKILLS)]


class GroupingStrategy(StrEnum):
    """Which running sandbox a new conversation joins, if any."""

    NO_GROUPING = "NO_GROUPING"
    """None: every conversation gets a sandbox of its own"""
    GROUP_BY_NEWEST = "GROUP_BY_NEWEST"
    """The one made last"""
    LEAST_RECENTLY_USED = "LEAST_RECENTLY_USED"
    """The one not used for longest"""
    FEWEST_CONVERSATIONS = "FEWEST_CONVERSATIONS"
    """The one with the fewest conversations"""
    ADD_TO_ANY = "ADD_TO_ANY"
    """The one made first"""


class Settings(Struct, frozen=True, kw_only=True):
    """What a user set, with defaults for the rest; None means not set."""

    language: str | None = None
    agent: str | None = None
    max_iterations: int | None = None
    security_analyzer: str | None = None
    confirmation_mode: bool | None = None
    llm_model: str | None = None
    llm_api_key: Secret | None = None
    llm_base_url: str | None = None
    remote_runtime_resource_factor: int | None = None
    enable_default_condenser: bool = True
    condenser_max_size: int | None = None
    enable_sound_notifications: bool = False
    enable_proactive_conversation_starters: bool = True
    enable_solvability_analysis: bool = True
    user_consents_to_analytics: bool | None = None
    sandbox_base_container_image: str | None = None
    sandbox_runtime_container_image: str | None = None
    mcp_config: McpConfig | None = None
    search_api_key: Secret | None = None
    sandbox_api_key: Secret | None = None
    max_budget_per_task: float | None = None
    email: str | None = None
    email_verified: bool | None = None
    git_user_name: str | None = None
    git_user_email: str | None = None
    git_full_clone: bool = False
    disabled_skills: tuple[str, ...] | None = None
    v1_enabled: bool | None = None
    user_version: int | None = None
    sandbox_grouping_strategy: GroupingStrategy = GroupingStrategy.NO_GROUPING
    default_sandbox_spec_id: str | None = None
    title_llm_profile: str | None = None
    llm_options: LlmOptions = LlmOptions()
    agent_options: AgentOptions = AgentOptions()
    llm_profiles: dict[str, Llm] = {}
    sandbox_idle: IdleRules = IdleRules()
    """What becomes of the user's sandboxes that are not used; wins over specs and the server."""
    activated_profile: str | None = None
    """The profile activated last; `profiles.active_profile` says whether it still is."""


class SettingsPatch(Struct, frozen=True, kw_only=True):
    """A change to settings: UNSET leaves a field alone, None puts it back to its default.

    None also leaves the fields of KEPT_ON_NULL alone. An empty text clears any field that is a text.
    """

    language: str | UnsetType | None = UNSET
    agent: str | UnsetType | None = UNSET
    max_iterations: int | UnsetType | None = UNSET
    security_analyzer: str | UnsetType | None = UNSET
    confirmation_mode: bool | UnsetType | None = UNSET
    llm_model: str | UnsetType | None = UNSET
    llm_api_key: Secret | UnsetType | None = UNSET
    llm_base_url: str | UnsetType | None = UNSET
    remote_runtime_resource_factor: int | UnsetType | None = UNSET
    enable_default_condenser: bool | UnsetType | None = UNSET
    condenser_max_size: int | UnsetType | None = UNSET
    enable_sound_notifications: bool | UnsetType | None = UNSET
    enable_proactive_conversation_starters: bool | UnsetType | None = UNSET
    enable_solvability_analysis: bool | UnsetType | None = UNSET
    user_consents_to_analytics: bool | UnsetType | None = UNSET
    sandbox_base_container_image: str | UnsetType | None = UNSET
    sandbox_runtime_container_image: str | UnsetType | None = UNSET
    mcp_config: McpConfig | UnsetType | None = UNSET
    search_api_key: Secret | UnsetType | None = UNSET
    sandbox_api_key: Secret | UnsetType | None = UNSET
    max_budget_per_task: float | UnsetType | None = UNSET
    email: str | UnsetType | None = UNSET
    email_verified: bool | UnsetType | None = UNSET
    git_user_name: str | UnsetType | None = UNSET
    git_user_email: str | UnsetType | None = UNSET
    git_full_clone: bool | UnsetType | None = UNSET
    disabled_skills: tuple[str, ...] | UnsetType | None = UNSET
    v1_enabled: bool | UnsetType | None = UNSET
    user_version: int | UnsetType | None = UNSET
    sandbox_grouping_strategy: GroupingStrategy | UnsetType | None = UNSET
    default_sandbox_spec_id: str | UnsetType | None = UNSET
    title_llm_profile: str | UnsetType | None = UNSET
    secrets_store: SecretsPatch | UnsetType = UNSET


FLAT_FIELDS: Final = tuple(
    name for name in Settings.__struct_fields__ if name in SettingsPatch.__struct_fields__
)
"""The fields a patch can change; the others change through `SettingsStore.change`."""

_DEFAULTS: Final = Settings()


def merge(old: Settings, patch: SettingsPatch) -> Settings:
    """Return the settings after a change; raises InvalidRequest.

    That is for stars that hide nothing, and for a new value that can never work; one that is stored
    already may come back. The secrets of `secrets_store` are not part of the record; the store
    applies them.
    """
    changes: dict[str, Any] = {}
    problems = Problems()
    for name in FLAT_FIELDS:
        given = getattr(patch, name)
        is_kept = name in KEPT_ON_NULL and _keeps(given)
        if given is UNSET or is_kept or given == getattr(old, name):
            continue
        empty = given is None or (isinstance(given, str | Secret) and not given)
        changes[name] = getattr(_DEFAULTS, name) if empty else given
        if not empty and name in _CHECKS:
            with problems.noted():
                _CHECKS[name](given, loc=("body", name))
    problems.refuse()
    mcp_config = changes.get("mcp_config")
    if mcp_config is not None:
        changes["mcp_config"] = restore_secrets(mcp_config, old.mcp_config)
    return msgspec.structs.replace(old, **changes)


def check_patch(patch: SettingsPatch, *, loc: Sequence[str | int] = ("body",)) -> None:
    """Raise InvalidRequest, located at the fields, for values out of their bounds."""
    problems = Problems()
    for name in FLAT_FIELDS:
        given = getattr(patch, name)
        if given is not UNSET and (problem := _problem(name, given)):
            problems.note(f"{name} {problem}", loc=(*loc, name))
    problems.refuse()


def show_settings(settings: Settings) -> dict[str, Any]:
    """Return the flat part as clients read it: JSON values under flat names, secrets hidden.

    To post it back changes nothing.
    """
    shown = {name: getattr(settings, name) for name in FLAT_FIELDS}
    shown |= dict.fromkeys(SECRET_FIELDS)
    if settings.mcp_config is not None:
        shown["mcp_config"] = show_mcp_config(settings.mcp_config)
    if settings.disabled_skills is not None:
        shown["disabled_skills"] = list(settings.disabled_skills)
    return shown


def llm_of(settings: Settings) -> Llm:
    """Return the language model the settings name, as one value."""
    return Llm(
        model=settings.llm_model,
        api_key=settings.llm_api_key,
        base_url=settings.llm_base_url,
        options=settings.llm_options,
    )


class SettingsStore:
    """Keeps the settings of users, sealed."""

    def __init__(self, db: Database, vault: Vault) -> None:
        self._db = db
        self._vault = vault

    async def find(self, user_id: str) -> Settings | None:
        """Return the settings of a user, or None if they never saved any."""
        return await self._load(self._db, user_id)

    async def get(self, user_id: str) -> Settings:
        """Return the settings of a user; the defaults if they never saved any."""
        return await self.find(user_id) or _DEFAULTS

    async def patch(self, user_id: str, patch: SettingsPatch) -> Settings:
        """Apply a change, secrets included, in one transaction, and return what is stored now.

        Raises InvalidRequest for a value out of bounds and stars that hide nothing.
        """
        check_patch(patch)

        async def body(tx: Transaction) -> Settings:
            settings = merge(await self._load(tx, user_id) or _DEFAULTS, patch)
            await self._save(tx, user_id, settings)
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
        """Store what a pure function makes of the settings, in one transaction, and return it.

        The function gets None for a user who never saved any; what it raises changes nothing.
        `secrets` are stored in the same transaction.
        """

        async def body(tx: Transaction) -> Settings:
            old = await self._load(tx, user_id)
            settings = change(old)
            if settings != old:
                await self._save(tx, user_id, settings)
            if secrets is not None:
                await apply_secrets(tx, self._vault, user_id, secrets)
            await note_effect(tx, settings)
            return settings

        return await self._db.write(body)

    async def _save(self, tx: Transaction, user_id: str, settings: Settings) -> None:
        sealed = self._vault.seal(_ENCODER.encode(settings), _context(user_id))
        await SettingsTable.put(tx, user_id, sealed)

    async def _load(self, reader: Queryable, user_id: str) -> Settings | None:
        row = await SettingsTable.find(reader, user_id)
        if row is None:
            return None
        return _DECODER.decode(self._vault.unseal(row["sealed"], _context(user_id)))


class SettingsTable:
    """The SQL of the `settings` table."""

    @staticmethod
    async def find(reader: Queryable, user_id: str) -> Row | None:
        """Return the sealed record of a user."""
        return await reader.one(
            """
            SELECT sealed
            FROM settings
            WHERE user_id = :user_id
            """,
            {"user_id": user_id},
        )

    @staticmethod
    async def put(tx: Transaction, user_id: str, sealed: bytes) -> int:
        """Insert the record of a user, or replace it."""
        return await tx.run(
            """
            INSERT INTO settings (user_id, sealed, updated_at)
            VALUES (:user_id, :sealed, :now)
            ON CONFLICT (user_id) DO UPDATE
            SET sealed = excluded.sealed,
                updated_at = excluded.updated_at
            """,
            {"user_id": user_id, "sealed": sealed, "now": values.to_stored(values.now())},
        )


def _context(user_id: str) -> str:
    return f"settings/{user_id}"


def _keeps(given: object) -> bool:
    return given is None or (isinstance(given, Secret) and given.reveal() == MASK)


def _problem(name: str, given: object) -> str:
    """Return what is wrong with the value of a field, or nothing."""
    check = _PROBLEMS.get(type(given))
    return check(name, given) if check else ""


def _problem_of_number(name: str, given: float) -> str:
    if name in LEAST:
        least = LEAST[name]
        return f"must be at least {least}" if given < least else _problem_of_size(given)
    return "" if math.isfinite(given) and given > 0 else "must be a number greater than 0"


def _problem_of_size(given: float) -> str:
    return "is too large" if given > MAX_INT else ""


def _problem_of_text(_name: str, given: str) -> str:
    if len(given) > _MAX_TEXT:
        return f"must not be longer than {_MAX_TEXT} characters"
    return "must not contain control characters" if has_control(given) else ""


def _problem_of_secret(name: str, given: Secret) -> str:
    return _problem_of_text(name, given.reveal())


def _problem_of_list(name: str, given: tuple[str, ...]) -> str:
    if len(given) > _MAX_SKILLS:
        return f"must not have more than {_MAX_SKILLS} items"
    problems = (_problem_of_text(name, item) for item in given)
    return next(filter(None, problems), "")


_PROBLEMS: Final[Mapping[type, Callable[[str, Any], str]]] = {
    int: _problem_of_number,
    float: _problem_of_number,
    str: _problem_of_text,
    Secret: _problem_of_secret,
    tuple: _problem_of_list,
}


def _to_json(secret: Secret) -> str:
    return secret.reveal()


def _from_json(_kind: type, value: str) -> Secret:
    return Secret(value)


_ENCODER = msgspec.json.Encoder(enc_hook=_to_json)
_DECODER = msgspec.json.Decoder(Settings, dec_hook=_from_json)
