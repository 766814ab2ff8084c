"""The APIs of git hosting services: whose token is this, and is it any good.

A token goes to the host it was stored with and nowhere else. What a host does not say stays
unknown: only a clear refusal makes a token a bad one.
"""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from msgspec import Struct

from agentsvc import git
from agentsvc.errors import (
    AgentsvcError,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
)
from agentsvc.orders import Provider
from agentsvc.secretstore import SecretStore
from agentsvc.usersecrets import ProviderToken, ProviderTokenPatch, merge_token

TIME_LIMIT: Final = 10.0
ANSWER_MAX: Final = 1024 * 1024

_OK: Final = 200
_UNAUTHORIZED: Final = 401


class GitAccount(Struct, frozen=True, kw_only=True):
    """The user a token belongs to, as the provider describes them."""

    id: str
    login: str
    avatar_url: str = ""
    company: str | None = None
    name: str | None = None
    email: str | None = None


class GitProviders:
    """The calls to all git hosting services, with the tokens of users; open it, then close it."""

    def __init__(
        self, secrets: SecretStore, *, time_limit: float = TIME_LIMIT, checks_tokens: bool = True
    ) -> None:
        self._secrets = secrets
        self._checks_tokens = checks_tokens
        self._time_limit = time_limit
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; needs a running event loop."""
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def store_tokens(
        self, user_id: str, tokens: Mapping[Provider, ProviderTokenPatch]
    ) -> list[Provider]:
        """Make these the tokens of a user, and return those that could not be checked.

        Each is shown to its provider first, unless checks are switched off. Raises
        NotAuthenticated, with nothing stored, if one is refused; a provider that cannot be reached
        does not lose a token.
        """
        stored = await self._secrets.provider_tokens(user_id)
        unchecked = []
        for provider, patch in tokens.items() if self._checks_tokens else ():
            token = merge_token(stored.get(provider), patch)
            if token is not None and not await self._is_good(provider, token):
                unchecked.append(provider)
        await self._secrets.set_provider_tokens(user_id, tokens)
        return unchecked

    async def get_account(self, user_id: str) -> GitAccount:
        """Return the user at the first provider that knows one.

        Raises NotAllowed without any token, NotAuthenticated if a token is refused,
        GitProviderUnavailable if nobody answers.
        """
        failure: AgentsvcError = NotAllowed("Git provider not connected")
        tokens = await self._secrets.provider_tokens(user_id)
        for provider in [one for one in Provider if one in tokens]:
            try:
                return await self.identify(provider, tokens[provider])
            except (NotAuthenticated, GitProviderUnavailable) as exc:
                failure = exc
        raise failure

    async def identify(self, provider: Provider, token: ProviderToken) -> GitAccount:
        """Return whose token this is; raises NotAuthenticated or GitProviderUnavailable."""
        answer = await self._get(provider, token, _account_url(provider, token.host))
        if provider is Provider.BITBUCKET_DATA_CENTER:
            # It tells the name only, and nothing at all to somebody without a good token.
            login = answer.decode(errors="replace").strip()
            if not login:
                raise _refused(provider)
            url = f"{_base_url(provider, token.host)}/rest/api/1.0/users/{quote(login, safe='')}"
            answer = await self._get(provider, token, url)
        try:
            return _ACCOUNTS[provider](msgspec.json.decode(answer))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as exc:
            raise _unavailable(provider, f"unexpected answer: {exc!r}") from exc

    async def _is_good(self, provider: Provider, token: ProviderToken) -> bool:
        """Tell whether a provider knows a token; False means that it could not be asked."""
        try:
            await self.identify(provider, token)
        except GitProviderUnavailable:
            return False
        return True

    async def _get(self, provider: Provider, token: ProviderToken, url: str) -> bytes:
        if self._session is None:
            raise _unavailable(provider, "the client is not open")
        try:
            async with (
                asyncio.timeout(self._time_limit),
                # A redirect could lead the token to another host.
                self._session.get(
                    url, headers=_headers(provider, token), allow_redirects=False
                ) as response,
            ):
                if response.status == _UNAUTHORIZED:
                    raise _refused(provider)
                if response.status != _OK:
                    raise _unavailable(provider, f"status {response.status}")
                return await _read(response)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise _unavailable(provider, repr(exc)) from exc


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_MAX:
            raise ValueError("the answer is too long")
    return bytes(body)


def _refused(provider: Provider) -> NotAuthenticated:
    text = f"Invalid token. Please make sure it is a valid {provider.value} token."
    return NotAuthenticated(text, extra={"error": text})


def _unavailable(provider: Provider, detail: str) -> GitProviderUnavailable:
    return GitProviderUnavailable(
        f"The git provider `{provider.value}` cannot be asked", detail=detail
    )


# Where a provider tells who somebody is


def _base_url(provider: Provider, host: str | None) -> str:
    chosen = host or git.DEFAULT_HOSTS.get(provider)
    if chosen is None:
        raise _unavailable(provider, "it has no host")
    return git.check_host(chosen)


def _account_url(provider: Provider, host: str | None) -> str:
    public, path = _ACCOUNT_URLS.get(provider, ("", ""))
    base = _base_url(provider, host)
    if not path:
        raise _unavailable(provider, "it has no API of its own")
    is_usual = base == f"https://{git.DEFAULT_HOSTS.get(provider)}"
    return public if public and is_usual else base + path


_ACCOUNT_URLS: Final = {
    Provider.GITHUB: ("https://api.github.com/user", "/api/v3/user"),
    Provider.GITLAB: ("", "/api/v4/user"),
    Provider.BITBUCKET: ("https://api.bitbucket.org/2.0/user", "/2.0/user"),
    Provider.BITBUCKET_DATA_CENTER: ("", "/plugins/servlet/applinks/whoami"),
    Provider.FORGEJO: ("", "/api/v1/user"),
    Provider.AZURE_DEVOPS: (
        "https://app.vssps.visualstudio.com/_apis/profile/profiles/me?api-version=7.1",
        "/_apis/connectionData",
    ),
}
"""Where a provider tells who somebody is: at its usual host, if it has a host of its own for that,
and below any other host."""


def _headers(provider: Provider, token: ProviderToken) -> dict[str, str]:
    text = token.token.reveal()
    if provider is Provider.AZURE_DEVOPS:
        text = f":{text}"
    if provider is Provider.FORGEJO:
        authorization = f"token {text}"
    elif ":" in text:
        authorization = f"Basic {base64.b64encode(text.encode()).decode()}"
    else:
        authorization = f"Bearer {text}"
    return {
        "Accept": "*/*" if provider is Provider.BITBUCKET_DATA_CENTER else "application/json",
        "Authorization": authorization,
        "User-Agent": "agentsvc",
    }


def _usual_account(answer: Any) -> GitAccount:
    """Return the account of GitHub, GitLab and Forgejo, which differ in single names only."""
    return GitAccount(
        id=str(answer["id"]),
        login=answer.get("login") or answer["username"],
        avatar_url=answer.get("avatar_url") or "",
        company=answer.get("company") or answer.get("organization"),
        name=answer.get("name") or answer.get("full_name"),
        email=answer.get("email"),
    )


def _bitbucket_account(answer: Any) -> GitAccount:
    links = answer.get("links") or {}
    return GitAccount(
        id=str(answer.get("account_id") or answer["uuid"]),
        login=answer.get("username") or answer["nickname"],
        avatar_url=(links.get("avatar") or {}).get("href") or "",
        name=answer.get("display_name"),
    )


def _data_center_account(answer: Any) -> GitAccount:
    return GitAccount(
        id=str(answer["id"]),
        login=answer["slug"],
        name=answer.get("displayName"),
        email=answer.get("emailAddress"),
    )


def _azure_account(answer: Any) -> GitAccount:
    user = answer.get("authenticatedUser") or answer
    account = ((user.get("properties") or {}).get("Account") or {}).get("$value")
    email = user.get("emailAddress") or account
    return GitAccount(
        id=str(user["id"]),
        login=email or user["providerDisplayName"],
        name=user.get("displayName") or user.get("providerDisplayName"),
        email=email,
    )


_ACCOUNTS: Final = {
    Provider.GITHUB: _usual_account,
    Provider.GITLAB: _usual_account,
    Provider.FORGEJO: _usual_account,
    Provider.BITBUCKET: _bitbucket_account,
    Provider.BITBUCKET_DATA_CENTER: _data_center_account,
    Provider.AZURE_DEVOPS: _azure_account,
}
