"""Handlers of LLM profiles: language models saved under names."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import Conflict, NotFound, copy_to, stated, with_check
from agentsvc.domain import Llm
from agentsvc.http.keys import SETTINGS, user_of
from agentsvc.http.routes import Effect, Routes, shown_as
from agentsvc.http.v1.types_agent_settings import StrictLlmBody, read_llm, show_llm, to_llm
from agentsvc.http.wire import json_response, path_text, read_json
from agentsvc.settings import Settings, llm_of, profiles


class ProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A profile without its options."""

    name: str
    """Name of the profile"""
    model: str | None
    """Provider and name of the model; null if no model was set when the profile was saved"""
    base_url: str | None
    """URL of the model's API; null: the default URL of its provider"""
    api_key_set: bool
    """Whether the profile has an API key for the model; the key itself is never shown"""


class ProfileList(msgspec.Struct, frozen=True, kw_only=True):
    """All profiles and the active one."""

    profiles: list[ProfileInfo]
    """All profiles"""
    active_profile: str | None
    """Name of the profile that was activated last; null if there is none, or if the settings differ
    from it by now"""


class ProfileDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with all its settings except secrets."""

    name: str
    """Name of the profile"""
    config: dict[str, Any]
    """The model in the form of `LlmBody`, with all fields; secrets are null"""
    api_key_set: bool
    """Whether the profile has an API key for the model"""


class ProfileChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of a change to a profile."""

    name: str
    """Name of the profile; after renaming the new name"""
    message: str
    """Confirmation, for people"""


class ProfileActivated(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmation of an activation, with the model now in use."""

    name: str
    """Name of the profile"""
    message: str
    """Confirmation, for people"""
    model: str | None
    """`llm_model` of the settings from now on; null if the profile has no model"""


class SaveProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The language model to save; without `llm` the model of the settings.

    A model with an unknown field is refused.
    """

    llm: Annotated[dict[str, Any], shown_as(StrictLlmBody), with_check(read_llm)] | None = None
    """The model to save; null or omitted: the model of the settings"""
    include_secrets: bool = True
    """Whether to save keys and secret headers with the model"""
    preserve_existing_api_key: bool = False
    """Whether secrets that are null or omitted in `llm` keep the values saved under this name;
    false clears them"""


class RenameProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The new name of a profile."""

    new_name: Annotated[str, msgspec.Meta(max_length=1000), stated(pattern=profiles.NAME_PATTERN)]
    """New name: 1 to 64 letters, digits, `.`, `_` and `-`; refused (409) if another profile has
    it"""


_NEW_NAME: Final[web.RequestKey[str]] = web.RequestKey("new_name", str)

_SAVE = msgspec.json.Decoder(SaveProfile | None)

ROUTES: Final = Routes("/api/v1/settings/profiles")


def _answer_renamed(request: web.Request, _settings: Settings) -> web.Response:
    new_name = request[_NEW_NAME]
    message = f"Profile '{_path_name(request)}' renamed to '{new_name}'"
    return json_response(ProfileChanged(name=new_name, message=message))


@ROUTES.add("GET", "")
async def get_profiles(request: web.Request) -> ProfileList:
    """List your LLM profiles.

    Without their keys.
    """
    settings = await request.app[SETTINGS].get(user_of(request))
    found = [
        copy_to(ProfileInfo, llm, name=name, api_key_set=bool(llm.api_key))
        for name, llm in settings.llm_profiles.items()
    ]
    return ProfileList(profiles=found, active_profile=profiles.active_profile(settings))


@ROUTES.add("GET", "/{name}")
async def get_profile(request: web.Request) -> ProfileDetail:
    """Get an LLM profile.

    With all fields; keys are null.
    """
    name = _path_name(request)
    settings = await request.app[SETTINGS].find(user_of(request))
    llm = profiles.get_profile(settings, name)
    return ProfileDetail(name=name, config=show_llm(llm), api_key_set=bool(llm.api_key))


@ROUTES.add(
    "POST",
    "/{name}",
    body=SaveProfile | None,
    status=HTTPStatus.CREATED,
    errors=(Conflict,),
    example={"llm": {"model": "openai/gpt-5-mini"}},
)
async def post_profile(request: web.Request) -> ProfileChanged:
    """Save a language model as an LLM profile.

    Replaces a profile of the same name. Without a body the model of the settings is saved. A user
    has at most 10 profiles (409).
    """
    name = _path_name(request)
    body = await read_json(request, _SAVE, default=None) or SaveProfile()
    given = None if body.llm is None else read_llm(body.llm)

    def save(settings: Settings) -> Settings:
        llm = llm_of(settings)
        if given is not None:
            stored = settings.llm_profiles.get(name, Llm())
            llm = to_llm(given, stored, keeps_secrets=body.preserve_existing_api_key)
        if not body.include_secrets:
            llm = profiles.without_secrets(llm)
        return profiles.save_profile(settings, name, llm)

    await _change(request, save)
    return ProfileChanged(name=name, message=f"Profile '{name}' saved")


@ROUTES.add("DELETE", "/{name}")
async def delete_profile(request: web.Request) -> ProfileChanged:
    """Delete an LLM profile.

    Succeeds if there is no profile of that name. The settings do not change.
    """
    name = _path_name(request)
    if await request.app[SETTINGS].find(user_of(request)) is not None:
        await _change(request, lambda old: profiles.delete_profile(old, name))
    return ProfileChanged(name=name, message=f"Profile '{name}' deleted")


@ROUTES.add("POST", "/{name}/activate")
async def post_activate(request: web.Request) -> ProfileActivated:
    """Activate an LLM profile.

    Its model, key, URL and options replace those of the settings, for conversations that are
    started from now on.
    """
    name = _path_name(request)
    settings = await _change(request, lambda old: profiles.activate_profile(old, name))
    message = f"Profile '{name}' activated"
    return ProfileActivated(name=name, message=message, model=settings.llm_model)


@ROUTES.add(
    "POST",
    "/{name}/rename",
    ProfileChanged,
    body=RenameProfile,
    effect=Effect(kind=Settings, answer=_answer_renamed),
    errors=(Conflict,),
    example={"new_name": "thorough"},
)
async def post_rename(request: web.Request) -> Settings:
    """Rename an LLM profile.

    If `title_llm_profile` of the settings names the profile, it is changed, too.
    """
    name = _path_name(request)
    body = await read_json(request, RenameProfile)
    new_name = profiles.check_profile_name(body.new_name, loc=("body", "new_name"))
    request[_NEW_NAME] = new_name
    return await _change(request, lambda old: profiles.rename_profile(old, name, new_name))


def _path_name(request: web.Request) -> str:
    return profiles.check_profile_name(path_text(request, "name"))


async def _change(request: web.Request, change: Callable[[Settings], Settings]) -> Settings:
    """Change the settings of the caller; raises NotFound if none were ever saved."""

    def change_saved(settings: Settings | None) -> Settings:
        if settings is None:
            raise NotFound("Settings not found", extra={"error": "Settings not found"})
        return change(settings)

    return await request.app[SETTINGS].change(user_of(request), change_saved)
