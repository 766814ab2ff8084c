"""Language models saved under names, so that a user can switch between them. Pure.

Each function returns settings in which the profiles are changed; the store keeps them.
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
    """Return the name; raises InvalidRequest unless a profile can be called so."""
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
    """Return the profile in use: the one activated last, while the settings still agree with it."""
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
    """Save a profile, over one of the same name; raises Conflict if there are too many."""
    if name not in settings.llm_profiles and len(settings.llm_profiles) >= PROFILES_MAX:
        raise Conflict(
            f"Profile limit reached ({PROFILES_MAX}). Delete a profile before saving a new one."
        )
    return msgspec.structs.replace(settings, llm_profiles={**settings.llm_profiles, name: llm})


def without_secrets(llm: Llm) -> Llm:
    """Return the model without its key and everything else that is secret."""
    return msgspec.structs.replace(without_secret_options(llm), api_key=None)


def delete_profile(settings: Settings, name: str) -> Settings:
    """Delete a profile; the settings keep the model it was made of. Nothing there is fine."""
    rest = {key: llm for key, llm in settings.llm_profiles.items() if key != name}
    return msgspec.structs.replace(settings, llm_profiles=rest)


def rename_profile(settings: Settings, name: str, new_name: str) -> Settings:
    """Rename a profile, which keeps its place and its uses.

    Raises NotFound, and Conflict if the name is taken.
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

    One without a key leaves the key of the settings in place.
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
