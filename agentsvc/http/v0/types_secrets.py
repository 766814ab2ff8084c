"""Secrets and provider tokens on the wire of the older generation."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from agentsvc.settings import ProviderTokens, VariableName, VariableValue

type Description = Annotated[str, Meta(max_length=4096)]


class SecretBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretModel: a secret to keep."""

    name: VariableName
    """Name of the environment variable that has the value in sandboxes; refused if there is a
    secret of that name"""
    value: VariableValue
    """The value; it is never returned"""
    description: Description | None = None
    """What it is for, told to the agent; at most 4096 characters. Null: nothing"""


class SecretChangeBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretWithoutValueModel: the name and the description a secret gets."""

    name: VariableName
    """Name it gets; may be the one it has"""
    description: Description | None = None
    """What it is for, told to the agent; at most 4096 characters. Null: nothing"""


class ProvidersBody(msgspec.Struct, frozen=True, kw_only=True):
    """POSTProviderModel: every git provider's token; those not sent are forgotten."""

    provider_tokens: ProviderTokens = {}
    """Tokens by provider. They replace all that is stored; an empty token keeps the stored one"""


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as it is shown."""

    name: str
    """Name of the environment variable that has the value in sandboxes"""
    description: str
    """What it is for; empty if that was not said"""


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """GETCustomSecrets: the secrets of a user, without their values."""

    custom_secrets: list[SecretView]
    """The secrets, by name"""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str
    """What was done, in words"""


def from_names(names: Mapping[str, str | None]) -> SecretList:
    """Return the secrets of these names and descriptions as they are shown."""
    views = [SecretView(name=name, description=text or "") for name, text in names.items()]
    return SecretList(custom_secrets=views)
