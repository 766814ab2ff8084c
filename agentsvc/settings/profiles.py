"""Model profiles: named language models between which a user can switch. Pure.

Functions that change profiles return new settings, which `SettingsStore` saves.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from agentsvc.base import Conflict, InvalidRequest, NotFound
from agentsvc.domain import Llm, without_secret_options
from agentsvc.settings.fields import Settings
from agentsvc.settings.store import llm_of

PROFILES_MAX: Final = 10

NAME_PATTERN: Final = r"\A[A-Za-z0-9._-]{1,64}\Z"
_NAME = re.compile(NAME_PATTERN)


def check_profile_name(name: str, *, loc: Sequence[str | int] = ("path", "name")) -> str:
    """Return the name of a profile; raises InvalidRequest if it is not valid."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "A profile name has 1 to 64 letters, digits, `.`, `_` and `-`",
            loc=loc,
            kind="string_pattern_mismatch",
        )
    return name


def get_profile(settings: Settings | None, name: str) -> Llm:
    """Return the profile of this name; raises NotFound."""
    found = settings.llm_profiles.get(name) if settings else None
    if found is None:
        raise NotFound(f"Profile '{name}' not found")
    return found


def active_profile(settings: Settings) -> str | None:
    """Return the profile activated last, if the settings still match it, or None."""
    name = settings.activated_profile
    saved = settings.llm_profiles.get(name) if name else None
    if saved is None:
        return None
    current = llm_of(settings)
    if not saved.api_key:
        # A profile without a key is used with the key of the settings.
        current = msgspec.structs.replace(current, api_key=saved.api_key)
    return name if saved == current else None


def save_profile(settings: Settings, name: str, llm: Llm) -> Settings:
    """Save a profile; overwrite one of the same name. Raises Conflict if there are too many."""
    if name not in settings.llm_profiles and len(settings.llm_profiles) >= PROFILES_MAX:
        raise Conflict(
            f"Profile limit reached ({PROFILES_MAX}). Delete a profile before saving a new one."
        )
    return msgspec.structs.replace(settings, llm_profiles={**settings.llm_profiles, name: llm})


def without_secrets(llm: Llm) -> Llm:
    """Return the model without its API key and secret options."""
    return msgspec.structs.replace(without_secret_options(llm), api_key=None)


def delete_profile(settings: Settings, name: str) -> Settings:
    """Delete a profile, without a change of the model in the settings. Idempotent."""
    profiles = {key: llm for key, llm in settings.llm_profiles.items() if key != name}
    return msgspec.structs.replace(settings, llm_profiles=profiles)


def rename_profile(settings: Settings, name: str, new_name: str) -> Settings:
    """Rename a profile, and keep its position and references to it.

    Raises NotFound, and Conflict if the new name exists.
    """
    get_profile(settings, name)
    if new_name != name and new_name in settings.llm_profiles:
        raise Conflict(f"Profile '{new_name}' already exists")
    names = {key: key for key in settings.llm_profiles} | {name: new_name}
    activated, of_titles = settings.activated_profile, settings.title_llm_profile
    return msgspec.structs.replace(
        settings,
        llm_profiles={names[key]: llm for key, llm in settings.llm_profiles.items()},
        activated_profile=names.get(activated or "", activated),
        title_llm_profile=names.get(of_titles or "", of_titles),
    )


def activate_profile(settings: Settings, name: str) -> Settings:
    """Make a profile the model of the settings; raises NotFound.

    If the profile has no API key, the key of the settings is kept.
    """
    llm = get_profile(settings, name)
    return msgspec.structs.replace(
        settings,
        llm_model=llm.model,
        llm_api_key=llm.api_key or settings.llm_api_key,
        llm_base_url=llm.base_url,
        llm_options=llm.options,
        activated_profile=name,
    )
