"""Handlers of language models saved under names."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import Conflict, NotFound, checked_by, copy_to, stated
from agentsvc.domain import Llm
from agentsvc.http.keys import SETTINGS, user_of
from agentsvc.http.routes import Effect, Routes, shown_as
from agentsvc.http.v1.types_agent_settings import StrictLlmBody, read_llm, show_llm, to_llm
from agentsvc.http.wire import json_response, path_text, read_json
from agentsvc.settings import Settings, llm_of, profiles


class ProfileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A profile in short."""

    name: str
    """Name of the saved model"""
    model: str | None
    """Provider and name of the model; null if none was set when it was saved"""
    base_url: str | None
    """URL of the model's API; null: the usual one of its provider"""
    api_key_set: bool
    """Whether a key for the model is saved with it; the key itself is never shown"""


class ProfileList(msgspec.Struct, frozen=True, kw_only=True):
    """Every profile, and the one in use."""

    profiles: list[ProfileInfo]
    """Every saved model"""
    active_profile: str | None
    """The one activated last, if the settings still are as it says; else null"""


class ProfileDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A profile with all its settings but the key."""

    name: str
    """Name of the saved model"""
    config: dict[str, Any]
    """The model as `LlmBody` describes it, every field spelled out; secrets are null"""
    api_key_set: bool
    """Whether a key for the model is saved with it"""


class ProfileChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    name: str
    """Name of the saved model; after a renaming the new one"""
    message: str
    """What was done, in words"""


class ProfileActivated(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, and the model in use now."""

    name: str
    """Name of the saved model"""
    message: str
    """What was done, in words"""
    model: str | None
    """`llm_model` of the settings from now on; null if the saved one names none"""


class SaveProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What to save: a language model, or the one of the settings if there is none.

    A model in which a field has an unknown name is refused.
    """

    llm: Annotated[dict[str, Any], shown_as(StrictLlmBody), checked_by(read_llm)] | None = None
    """The model to save; null or left out: the one of the settings"""
    include_secrets: bool = True
    """Whether keys and secret headers are saved with it; false saves it without any"""
    preserve_existing_api_key: bool = False
    """Whether secrets that `llm` leaves out, or has as null, stay as they are saved under this
    name; false clears them"""


class RenameProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The new name."""

    new_name: Annotated[str, msgspec.Meta(max_length=1000), stated(pattern=profiles.NAME_PATTERN)]
    """Name it gets: 1 to 64 letters, digits, `.`, `_` and `-`; refused (409) if there is one of
    that name"""


_NEW_NAME: Final[web.RequestKey[str]] = web.RequestKey("new_name", str)

_SAVE = msgspec.json.Decoder(SaveProfile | None)

ROUTES: Final = Routes("/api/v1/settings/profiles")


def _answer_renamed(request: web.Request, _settings: Settings) -> web.Response:
    new_name = request[_NEW_NAME]
    message = f"Profile '{_path_name(request)}' renamed to '{new_name}'"
    return json_response(ProfileChanged(name=new_name, message=message))


@ROUTES.add("GET", "")
async def get_profiles(request: web.Request) -> ProfileList:
    """List the saved language models.

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
    """Return a saved language model.

    Every field spelled out; keys are null.
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
    """Save a language model under a name.

    One of the same name is replaced. The body may be left out: the model of the settings is saved.
    At most 10 (409).
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
    """Delete a saved language model.

    Fine if there is none of that name. The settings stay as they are.
    """
    name = _path_name(request)
    if await request.app[SETTINGS].find(user_of(request)) is not None:
        await _change(request, lambda old: profiles.delete_profile(old, name))
    return ProfileChanged(name=name, message=f"Profile '{name}' deleted")


@ROUTES.add("POST", "/{name}/activate")
async def post_activate(request: web.Request) -> ProfileActivated:
    """Use a saved language model.

    Its model, key, URL and options become those of the settings, for conversations that are started
    from now on.
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
    """Rename a saved language model.

    `title_llm_profile` goes with it where it names the model; all else stays as it is.
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
