"""GitHub with an App: it checks what shows that one is the App as GitHub does, and gives tokens for it."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from agentsvc.base.values import Secret, now, to_stored
from tests.issue_hosts import IssueHost

APP: Final = "4711"
SLUG: Final = "robot"
HOOK: Final = "the-secret-of-the-hook"
_ROOT: Final = "/api/v3"
_OF_THE_APP: Final = r"/(?:repos/octo/(?:demo|renamed)|repositories/42)/installation|/app(?:/.*)?"


class AppHost(IssueHost):
    """GitHub Enterprise with one App; `keys` are those that GitHub has of it, and may be changed.

    `installation` is None where the App is not installed. `refused` has why it was not taken for the App.
    """

    def __init__(self, root: Path) -> None:
        super().__init__("github", root)
        self.keys = [RSAKey.generate_key(2048)]
        self.installation: dict[str, Any] | None = {"id": 77, "suspended_at": None}
        self.lifetime = timedelta(hours=1)
        self.tokens: list[str] = []
        self.asked_for: list[Any] = []
        self.refused: list[str] = []

    @property
    def private_key(self) -> str:
        """The newest key, as GitHub lets it be downloaded."""
        return self.keys[-1].as_pem(private=True).decode()

    def revoke_tokens(self) -> None:
        """Let no token be good that was given."""
        self.tokens.clear()
        self.git.token = Secret("none")

    def lets_in(self, authorization: str) -> bool:
        return authorization.removeprefix("Bearer ") in self.tokens

    async def handle(self, request: web.Request) -> web.StreamResponse:
        place = request.rel_url.raw_path.removeprefix(_ROOT)
        is_redirected = self.trouble == "renamed" and "demo" in place
        if is_redirected or not re.fullmatch(_OF_THE_APP, place):
            return await super().handle(request)
        self.requests.append(f"{request.method} {place}")
        if problem := self._problem(request.headers.get("Authorization", "")):
            self.refused.append(problem)
            return web.json_response({"message": problem}, status=401)
        return await self._answer_app(request, place)

    async def _answer_app(self, request: web.Request, place: str) -> web.StreamResponse:
        if (request.method, place) == ("GET", "/app"):
            return web.json_response({"id": int(APP), "slug": SLUG})
        if self.installation is None:
            return web.json_response({"message": "Not Found"}, status=404)
        if request.method == "GET":
            return web.json_response(self.installation)
        assert (request.method, place) == ("POST", "/app/installations/77/access_tokens")
        self.asked_for.append(await request.json())
        if self.trouble == "renamed" and self.asked_for[-1].get("repositories") == ["demo"]:
            return web.json_response({"message": "There is no such repository"}, status=422)
        token = f"ghs_{len(self.asked_for):036}"
        self.tokens.append(token)
        self.git.token = Secret(token)
        expires_at = to_stored(now() + self.lifetime)
        return web.json_response({"token": token, "expires_at": expires_at}, status=201)

    def _problem(self, authorization: str) -> str:
        text = authorization.removeprefix("Bearer ")
        claims: dict[str, Any] | None = None
        for key in self.keys:
            try:
                claims = jwt.decode(text, key, ["RS256"]).claims
            except (JoseError, ValueError):
                continue
        if claims is None:
            return "A JSON web token could not be decoded"
        moment = now().timestamp()
        if not isinstance(claims["iat"], int) or claims["iat"] > moment:
            return "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
        if not moment < claims["exp"] <= moment + 600:
            return "'Expiration time' claim ('exp') is too far in the future"
        return "" if claims["iss"] == APP else "'Issuer' claim ('iss') is not the App's"
