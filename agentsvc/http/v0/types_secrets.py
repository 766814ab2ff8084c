"""Secrets and provider tokens on the wire of the older generation."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from agentsvc.http.routes import shown_as
from agentsvc.http.shapes import ProviderTokens
from agentsvc.misfits import checked_by
from agentsvc.usersecrets import read_provider_tokens

type SecretName = Annotated[str, Meta(max_length=256)]
type Description = Annotated[str, Meta(max_length=4096)]


class SecretBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretModel: a secret to keep."""

    name: SecretName
    value: str
    description: Description | None = None


class SecretChangeBody(msgspec.Struct, frozen=True, kw_only=True):
    """CustomSecretWithoutValueModel: the name and the description a secret gets."""

    name: SecretName
    description: Description | None = None


class ProvidersBody(msgspec.Struct, frozen=True, kw_only=True):
    """POSTProviderModel: every git provider's token; those not sent are forgotten."""

    provider_tokens: Annotated[
        dict[str, Any], shown_as(ProviderTokens), checked_by(read_provider_tokens)
    ] = {}


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as it is shown."""

    name: str
    description: str


class SecretList(msgspec.Struct, frozen=True, kw_only=True):
    """GETCustomSecrets: the secrets of a user, without their values."""

    custom_secrets: list[SecretView]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    message: str


SECRET_BODY: Final = msgspec.json.Decoder(SecretBody)
SECRET_CHANGE_BODY: Final = msgspec.json.Decoder(SecretChangeBody)
PROVIDERS_BODY: Final = msgspec.json.Decoder(ProvidersBody)


def from_names(names: Mapping[str, str | None]) -> SecretList:
    """Return the secrets of these names and descriptions as they are shown."""
    views = [SecretView(name=name, description=text or "") for name, text in names.items()]
    return SecretList(custom_secrets=views)
