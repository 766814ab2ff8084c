"""Path parameters: the type, description and example of each, shared by all routes."""

import re
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from agentsvc.base import stated
from agentsvc.settings import NAME_PATTERN

_PART: Final = re.compile(r"\{(\w+)(?::[^{}]+)?\}")


class PathPart(msgspec.Struct, frozen=True, kw_only=True):
    """A path parameter; the example is the same in every operation."""

    kind: Any
    text: str
    example: Any


def _uuid(of: str, example: str) -> PathPart:
    return PathPart(kind=UUID, text=f"Id of {of}, with or without dashes", example=example)


def _text(text: str, example: str) -> PathPart:
    return PathPart(kind=str, text=text, example=example)


PATH_PARTS: Final = {
    "conversation_id": _uuid("a conversation", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
    "message_id": _uuid("a pending message", "0b8a4d2e-6f1c-4a83-9d57-2c1e90b7f364"),
    "model_host": _text("Host of language models, as listed", "models.example.org:11434"),
    "sandbox_id": _text("Id of a sandbox", "7c9e6679742540de944be07fc1f90ae7"),
    "user_id": _text("Id of a user", "5f0c3b1a9d2e4c7f8b6a0d1e2f3a4b5c"),
    "org_id": PathPart(
        kind=UUID,
        text="Id of an organization, with or without dashes; equal to the id of its one user",
        example="5f0c3b1a9d2e4c7f8b6a0d1e2f3a4b5c",
    ),
    "name": PathPart(
        kind=Annotated[str, stated(pattern=NAME_PATTERN)],
        text="Name of a saved language model: 1 to 64 letters, digits, `.`, `_` and `-`",
        example="fast",
    ),
    "secret_id": _text("Name of a secret", "API_TOKEN"),
    "secret_name": _text("Name of a secret", "API_TOKEN"),
    "repository_name": _text("Name of a repository, slashes included", "octocat/hello-world"),
    "subscription_id": _text("Id of a webhook subscription", "9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d"),
    "delivery_id": _text("Id of a webhook delivery", "1b9d6bcdbbfd4b2d9b5dab8dfbbd4bed"),
    "login_provider": _text("Name of an external login provider", "company"),
    "login_id": _text("Id of a login", "3b241101e2bb42558caf4136c566a962"),
    "session_id": _text(
        "Session id that the caller chose for a runtime", "7c9e6679742540de944be07fc1f90ae7"
    ),
    "runtime_id": _text("Id of a runtime", "7c9e6679742540de944be07fc1f90ae7"),
    "archive_id": _uuid("a saved workspace", "9c858901-8a57-4791-81fe-4c455b099bc9"),
    "environment_id": _uuid("a prepared environment", "1b4e28ba-2fa1-41d2-883f-0016d3cca427"),
    "attempts_id": _uuid("a task with several attempts", "5c2d9a2e-6f0b-4a53-9d38-3a1f2b7c8d90"),
    "automation_id": _uuid("an automation", "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b"),
    "run_id": _uuid("a run of an automation", "16fd2706-8baf-433b-82eb-8c7fada847da"),
    "share_id": _text("Id of a share link of a conversation", "7c9e6679742540de944be07fc1f90ae7"),
    "event_id": _text("Id of an event", "08cd748d-de9f-40da-ad3a-a06df58cf5bf"),
    "key_id": PathPart(kind=int, text="Number of an API key", example=1),
}
"""The path parameters by name."""


def names_in(path: str) -> list[str]:
    """Return the names of a path's parameters in their order."""
    return _PART.findall(path)


def plain_path(path: str) -> str:
    """Return a path as OpenAPI writes it, without the patterns of its parameters."""
    return _PART.sub(r"{\1}", path)


def part_of(name: str) -> PathPart:
    """Return the path parameter of this name; unknown ones are strings without a description."""
    return PATH_PARTS.get(name, PathPart(kind=str, text="", example=name))
