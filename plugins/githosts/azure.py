"""Azure DevOps: whose token it is. Its repositories are cloned, but not listed."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from agentsvc.extension.git import GitAccount, Hosting, Places

_PROFILE_HOST: Final = "https://app.vssps.visualstudio.com"


class _Property(Struct, frozen=True):
    value: Any = msgspec.field(default=None, name="$value")


class _Properties(Struct, frozen=True):
    account: _Property = msgspec.field(default=_Property(), name="Account")


class _User(Struct, frozen=True, rename="camel"):
    id: str
    display_name: str | None = None
    email_address: str | None = None
    provider_display_name: str | None = None
    properties: _Properties = _Properties()


class _Connection(Struct, frozen=True, rename="camel"):
    authenticated_user: _User


class AzureDevOps(Hosting):
    """Azure DevOps as the token of one user opens it."""

    @staticmethod
    def places(base: str, *, is_usual: bool) -> Places:
        """Return the host of profiles, or the server's own address."""
        return Places(rest=_PROFILE_HOST if is_usual else base)

    async def account(self) -> GitAccount:
        """Return whose token it is."""
        if self._api.rest == _PROFILE_HOST:
            path = "/_apis/profile/profiles/me"
            user = (await self._api.get(path, _User, **{"api-version": "7.1"})).value
        else:
            answer = await self._api.get("/_apis/connectionData", _Connection)
            user = answer.value.authenticated_user
        account = user.properties.account.value
        email = user.email_address or (account if isinstance(account, str) else None)
        name = user.display_name or user.provider_display_name
        return GitAccount(id=user.id, login=email or name or user.id, name=name, email=email)
