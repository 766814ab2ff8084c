"""Git hosting services in the test's own process: they answer what `tests/data/git` says.

The token `good` is good, `user:good` too where a user name goes with it; every other is refused.
A request that nobody wrote down is kept in `unexpected`.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final, Self

from aiohttp import web

RECORDINGS: Final = Path(__file__).parent / "data" / "git"
ANYTHING: Final = "*"
WHO_AM_I: Final = "/plugins/servlet/applinks/whoami"
APP: Final = "/api/v3/app"
"""Answered to anybody; `tests.github_app_host` checks who asks."""

_RECORDED: Final[list[dict[str, Any]]] = [
    exchange
    for file in sorted(RECORDINGS.glob("*/*.json"))
    for exchange in json.loads(file.read_text())
]
_AUTHORIZATIONS: Final = {
    "/api/v1": {"token good"},
    "/_apis": {f"Basic {base64.b64encode(b':good').decode()}"},
    "": {"Bearer good"},
}
_WITH_NAME: Final = "/2.0"


class GitHosts:
    """All hosting services behind one address; use it as an async context manager.

    `status`, `headers` and `body` replace those of every answer; the paths of `forbidden` need more
    than the token allows. What nobody wrote down is answered with `unknown`.
    """

    def __init__(self, *, unknown: int = 501) -> None:
        self._unknown = unknown
        self.requests: list[str] = []
        self.unexpected: list[str] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None
        self.forbidden: set[str] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        self.requests.append(request.raw_path.partition("?")[0])
        if self.status != 200:
            headers = {"Location": "/elsewhere", **self.headers}
            return web.Response(status=self.status, headers=headers)
        if not _is_good(request):
            return _refusal(request)
        if request.path in self.forbidden:
            return web.json_response({"message": "Forbidden"}, status=403)
        if self.body is not None:
            return web.Response(body=self.body, headers=self.headers)
        found = await self._find(request)
        if found is None:
            self.unexpected.append(f"{request.method} {request.raw_path}")
            return web.json_response({"message": "nobody wrote this down"}, status=self._unknown)
        return self._response(found)

    async def _find(self, request: web.Request) -> dict[str, Any] | None:
        body = await request.json() if request.can_read_body else {}
        for exchange in _RECORDED:
            if _fits(exchange["request"], request, body):
                response: dict[str, Any] = exchange["response"]
                return response
        return None

    def _response(self, recorded: dict[str, Any]) -> web.Response:
        text = recorded["text"] if "text" in recorded else json.dumps(recorded["body"])
        headers = {
            name: value.replace("{host}", self.url)
            for name, value in recorded.get("headers", {}).items()
        }
        kind = "text/plain" if "text" in recorded else "application/json"
        return web.Response(
            text=text.replace("{host}", self.url),
            status=recorded["status"],
            headers=headers,
            content_type=kind,
        )


def _fits(recorded: dict[str, Any], request: web.Request, body: dict[str, Any]) -> bool:
    if (recorded["method"], recorded["path"]) != (request.method, request.rel_url.raw_path):
        return False
    if request.method == "GET":
        return _is_same(recorded["query"], dict(request.query))
    return recorded["asks"] in body["query"] and _is_same(recorded["variables"], body["variables"])


def _is_same(recorded: dict[str, Any], given: dict[str, Any]) -> bool:
    return recorded.keys() == given.keys() and all(
        value in (ANYTHING, given[name]) for name, value in recorded.items()
    )


def _is_good(request: web.Request) -> bool:
    given = request.headers.get("Authorization", "")
    if request.path.startswith(_WITH_NAME) and given.startswith("Basic "):
        return base64.b64decode(given.removeprefix("Basic ")).endswith(b":good")
    prefix = next(one for one in _AUTHORIZATIONS if request.path.startswith(one))
    return given in _AUTHORIZATIONS[prefix]


def _refusal(request: web.Request) -> web.Response:
    if request.path == APP:
        return web.json_response({"id": 123456, "slug": "robot"})
    if request.path == WHO_AM_I:
        return web.Response(text="")
    return web.json_response({"message": "Bad credentials"}, status=401)
