"""The client of an OpenID Connect provider: its metadata, its keys, and the validation of tokens.

`tokens` verifies signatures and claims. Metadata and keys are fetched on first use; keys are fetched again for
a token with an unknown key, since providers rotate them.
"""

import asyncio
import hashlib
import importlib.util
import ipaddress
import logging
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import msgspec

from agentsvc.base import NotAuthenticated, SignInUnavailable, StartFailed, monotonic, now

from .attempts import Attempt
from .config import ProviderConfig

log = logging.getLogger(__name__)

type Claims = dict[str, Any]

_SECONDS: Final = 10.0
_LARGEST_BYTES: Final = 512 * 1024
_METADATA_SECONDS: Final = 3600.0
_KEYS_AGAIN_SECONDS: Final = 1.0
"""Minimum time between two fetches: anybody can send forged tokens, which must not load a provider."""
_LOGOUT_SECONDS: Final = 300
_LOGOUT: Final = "http://schemas.openid.net/event/backchannel-logout"


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a provider."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct, frozen=True, kw_only=True):
    id_token: str


class _Keys(msgspec.Struct, frozen=True, kw_only=True):
    keys: list[dict[str, Any]]


class Provider:
    """One configured provider."""

    def __init__(
        self, name: str, config: ProviderConfig, session: aiohttp.ClientSession, *, skew: int
    ) -> None:
        self.name = name
        self.config = config
        self._session = session
        self._skew = skew
        self._secret = _read_secret(name, config.client_secret_file)
        self._lock = asyncio.Lock()
        self._failed_at = float("-inf")
        self._metadata: Metadata | None = None
        self._metadata_at = 0.0
        self._keys: list[dict[str, Any]] = []
        self._keys_at = float("-inf")
        self._used: dict[str, float] = {}
        if not _is_safe(config.issuer):
            raise StartFailed(f"`sign_in.providers.{name}.issuer` has to be an https URL")

    async def authorization_url(self, state: str, attempt: Attempt) -> str:
        """Return the URL for signing in with a browser; raises SignInUnavailable."""
        metadata = await self._get_metadata()
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.config.client_id,
            "scope": " ".join(self.config.scopes),
            "redirect_uri": attempt.redirect_uri,
            "state": state,
            "nonce": attempt.nonce,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        url = metadata.authorization_endpoint
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    async def redeem(self, code: str, attempt: Attempt) -> Claims:
        """Exchange a code for tokens, and return the claims of the id token.

        Raises NotAuthenticated for an invalid code or response, and SignInUnavailable.
        """
        metadata = await self._get_metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        headers = {"Accept": "application/json"}
        if not self._secret:
            form["client_id"] = self.config.client_id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            client = (quote(one, safe="") for one in (self.config.client_id, self._secret))
            headers["Authorization"] = aiohttp.encode_basic_auth(*client)
        else:
            form |= {"client_id": self.config.client_id, "client_secret": self._secret}
        status, body = await self._request("POST", metadata.token_endpoint, headers, form)
        if status in (400, 401, 403):
            log.warning(
                "sign-in refused by its provider",
                extra={"provider": self.name, "reason": body[:200].decode(errors="replace")},
            )
            raise NotAuthenticated("The provider does not accept this sign-in; start again")
        tokens = self._decoded(status, body, _Tokens)
        nonce = {"essential": True, "value": attempt.nonce}
        claims = await self._verify(tokens.id_token, {"nonce": nonce})
        audience = claims["aud"]
        if claims.get("azp", self.config.client_id) != self.config.client_id or (
            isinstance(audience, list) and len(audience) > 1 and "azp" not in claims
        ):
            raise self._refused("its token is for another client")
        return claims

    async def check_logout(self, token: str) -> Claims:
        """Return the claims of a logout token (OpenID Connect Back-Channel Logout).

        Raises NotAuthenticated for a token that is invalid or was used before.
        """
        claims = await self._verify(
            token, {"iat": {"essential": True}, "jti": {"essential": True}}, needs_subject=False
        )
        events = claims.get("events")
        if not isinstance(events, dict) or _LOGOUT not in events or "nonce" in claims:
            raise self._refused("its token ends no logins")
        moment = now().timestamp()
        if claims["iat"] < moment - _LOGOUT_SECONDS - self._skew:
            raise self._refused("its token is old")
        self._used = {one: until for one, until in self._used.items() if until > moment}
        if str(claims["jti"]) in self._used:
            raise self._refused("its token was used before")
        self._used[str(claims["jti"])] = moment + _LOGOUT_SECONDS + 2 * self._skew
        return claims

    def check_issuer(self, issuer: str | None) -> None:
        """Raise NotAuthenticated if a response names another issuer (RFC 9207)."""
        if issuer is not None and issuer != self.config.issuer:
            raise self._refused("the answer is from another provider")

    async def _verify(
        self, token: str, more: Mapping[str, Any], *, needs_subject: bool = True
    ) -> Claims:
        # Imported in a thread: `tokens` takes as long to import as the rest of the server.
        await asyncio.to_thread(importlib.import_module, ".tokens", __package__)
        from .tokens import BadToken, UnknownKey, verify  # noqa: PLC0415

        needed = {
            "iss": {"essential": True, "value": self.config.issuer},
            "aud": {"essential": True, "value": self.config.client_id},
            "exp": {"essential": True},
            "sub": {"essential": needs_subject},
            **more,
        }
        try:
            try:
                return verify(token, self._keys, needed, skew=self._skew)
            except UnknownKey:
                await self._fetch_keys()
                return verify(token, self._keys, needed, skew=self._skew)
        except BadToken as exc:
            raise self._refused(f"its token is invalid ({exc})") from exc

    def _refused(self, why: str) -> NotAuthenticated:
        log.warning("sign-in refused", extra={"provider": self.name, "reason": why})
        return NotAuthenticated(f"The sign-in by `{self.name}` is invalid: {why}")

    # Metadata and keys

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Serialize requests; those that waited during a failed one fail without another request."""
        begun = monotonic()
        async with self._lock:
            if self._failed_at >= begun:
                raise SignInUnavailable(f"The provider `{self.name}` cannot be used now")
            try:
                yield
            except SignInUnavailable:
                self._failed_at = monotonic()
                raise

    def _known_metadata(self) -> Metadata | None:
        is_fresh = monotonic() - self._metadata_at < _METADATA_SECONDS
        return self._metadata if is_fresh else None

    async def _get_metadata(self) -> Metadata:
        if (known := self._known_metadata()) is not None:
            return known
        async with self._turn():
            if (known := self._known_metadata()) is not None:
                return known
            url = f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration"
            found = self._decoded(*await self._request("GET", url), Metadata)
            ends = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
            if found.issuer != self.config.issuer:
                raise self._unavailable(f"its issuer is {found.issuer!r}")
            if not all(_is_safe(one) for one in ends):
                raise self._unavailable("one of its endpoints is not an https URL")
            self._metadata, self._metadata_at = found, monotonic()
            return found

    async def _fetch_keys(self) -> None:
        metadata = await self._get_metadata()
        async with self._turn():
            if monotonic() - self._keys_at < _KEYS_AGAIN_SECONDS:
                return
            self._keys_at = monotonic()
            found = self._decoded(*await self._request("GET", metadata.jwks_uri), _Keys)
            self._keys = found.keys

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        options: dict[str, Any] = {"headers": headers, "data": form, "allow_redirects": False}
        try:
            async with self._session.request(method, url, **options) as response:
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > _LARGEST_BYTES:
                        raise self._unavailable("its answer is too large")
                return response.status, bytes(body)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise self._unavailable(type(exc).__name__) from exc

    def _decoded[T](self, status: int, body: bytes, kind: type[T]) -> T:
        if status != 200:  # noqa: PLR2004  # an HTTP status reads best as a number
            raise self._unavailable(f"its response is {status}")
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise self._unavailable("its response is invalid") from exc

    def _unavailable(self, why: str) -> SignInUnavailable:
        log.warning("sign-in provider unavailable", extra={"provider": self.name, "reason": why})
        return SignInUnavailable(f"The provider `{self.name}` cannot be used now: {why}")


def check_installed() -> None:
    """Raise StartFailed if `joserfc` is not installed; it is imported on first use."""
    if importlib.util.find_spec("joserfc") is None:
        raise StartFailed(
            "Sign-in needs the package joserfc", hint="install agentsvc with the extra `oidc`"
        )


def new_session() -> aiohttp.ClientSession:
    """Return an HTTP session for providers; the environment may configure a proxy."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_SECONDS),
        trust_env=True,
    )


def _read_secret(name: str, path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise StartFailed(
            f"`sign_in.providers.{name}.client_secret_file` cannot be read: {path}"
        ) from exc


def _is_safe(url: str) -> bool:
    """Return whether a URL uses https, or http to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme != "http":
        return parts.scheme == "https" and bool(host)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
