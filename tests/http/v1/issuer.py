"""A provider of OpenID Connect that says whatever a test wants, signed with its keys or not."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import RSAKey

from agentsvc.base.values import now

CLIENT = "agentsvc"
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


class Issuer:
    """Its next token has the claims of `claims` and the head of `header`; None leaves a claim out."""

    def __init__(self) -> None:
        self.url = ""
        self.key = RSAKey.generate_key(2048, {"kid": "one"})
        self.published: list[Any] = [self.key]
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.key_fetches = 0
        self.forms: list[dict[str, str]] = []
        self.authorizations: list[str] = []
        self.nonce = ""
        self.hangs = False

    def sign(self, claims: dict[str, Any]) -> str:
        header = {"alg": "RS256", "kid": self.key.kid, **self.header}
        header = {name: one for name, one in header.items() if one is not None}
        if header["alg"] == "none":
            return f"{_part(header)}.{_part(claims)}."
        if header["alg"] == "HS256":
            # The key that everybody can read, taken for a shared one.
            signed = ".".join(_part(one) for one in (header, claims))
            shared = self.key.as_pem(private=False)
            digest = hmac.digest(shared, signed.encode(), "sha256")
            return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        return jwt.encode(header, claims, self.key, ["RS256"])

    def id_token(self) -> str:
        moment = round(now().timestamp())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "42",
            "preferred_username": "ann",
            "sid": "session-1",
            "iat": moment,
            "exp": moment + 60,
            "nonce": self.nonce,
            **self.claims,
        }
        return self.sign({name: one for name, one in claims.items() if one is not None})

    def logout_token(self, **changes: Any) -> str:
        moment = round(now().timestamp())
        claims = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "42",
            "iat": moment,
            "exp": moment + 120,
            "jti": f"token-{time.monotonic_ns()}",
            "events": {LOGOUT_EVENT: {}},
            **changes,
        }
        return self.sign({name: one for name, one in claims.items() if one is not None})

    def authorize(self, url: str) -> dict[str, str]:
        """Be the user who signs in: return what the browser is sent back with."""
        query = {name: one[0] for name, one in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.url}/authorize?")
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        self.nonce = query["nonce"]
        self.asked = query
        return {"code": "a-code", "state": query["state"]}

    async def get_metadata(self, _request: web.Request) -> web.Response:
        ends = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "keys",
        }
        if self.hangs:
            await asyncio.sleep(5)
        urls = {name: f"{self.url}/{path}" for name, path in ends.items()}
        return web.json_response({"issuer": self.url, **urls, **self.metadata})

    async def get_keys(self, _request: web.Request) -> web.Response:
        self.key_fetches += 1
        odd = [{"kty": "new"}, {"kty": "RSA", "n": 1, "kid": "odd"}, {"kty": "oct", "k": "AAAA"}]
        keys = [one.as_dict(private=False) for one in self.published]
        return web.json_response({"keys": [*odd, *keys]})

    async def post_token(self, request: web.Request) -> web.Response:
        form = {name: str(one) for name, one in (await request.post()).items()}
        self.forms.append(form)
        self.authorizations.append(request.headers.get("Authorization", ""))
        if form["code"] != "a-code":
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response({"id_token": self.id_token(), "token_type": "Bearer"})


@asynccontextmanager
async def running_issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.get_metadata)
    app.router.add_get("/keys", issuer.get_keys)
    app.router.add_post("/token", issuer.post_token)
    async with TestServer(app) as server:
        issuer.url = str(server.make_url("")).rstrip("/")
        yield issuer
