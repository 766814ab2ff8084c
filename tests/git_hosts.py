"""Git hosting services in the test's own process: they answer as their documentation shows.

The token `good` is good, `user:good` too where a user name goes with it; every other is refused.
"""

import base64
from typing import Any, Self

from aiohttp import web

GITHUB: dict[str, Any] = {
    "login": "octocat",
    "id": 583231,
    "node_id": "MDQ6VXNlcjU4MzIzMQ==",
    "avatar_url": "https://avatars.githubusercontent.com/u/583231?v=4",
    "html_url": "https://github.com/octocat",
    "type": "User",
    "site_admin": False,
    "name": "The Octocat",
    "company": "@github",
    "blog": "https://github.blog",
    "location": "San Francisco",
    "email": None,
    "hireable": None,
    "bio": None,
    "public_repos": 8,
}
GITLAB: dict[str, Any] = {
    "id": 1,
    "username": "john_smith",
    "name": "John Smith",
    "state": "active",
    "locked": False,
    "avatar_url": "http://localhost:3000/uploads/user/avatar/1/index.jpg",
    "web_url": "http://localhost:3000/john_smith",
    "organization": "Widgets",
    "job_title": "",
    "email": "john@example.com",
    "commit_email": "admin@example.com",
}
FORGEJO: dict[str, Any] = {
    "id": 7,
    "login": "earl",
    "login_name": "",
    "full_name": "Earl Warren",
    "email": "earl@noreply.codeberg.org",
    "avatar_url": "https://codeberg.org/avatars/7",
    "is_admin": False,
}
BITBUCKET: dict[str, Any] = {
    "type": "user",
    "uuid": "{2f0c8a3e-4bb7-4f26-9b3b-0a5b8f4f7c11}",
    "account_id": "557058:1",
    "display_name": "Emma Paris",
    "nickname": "evzijst",
    "links": {"avatar": {"href": "https://bitbucket.org/account/evzijst/avatar/32/"}},
}
DATA_CENTER: dict[str, Any] = {
    "name": "jcitizen",
    "emailAddress": "jane@example.com",
    "active": True,
    "displayName": "Jane Citizen",
    "id": 101,
    "slug": "jcitizen",
    "type": "NORMAL",
}
AZURE: dict[str, Any] = {
    "authenticatedUser": {
        "id": "d6245f20-2af8-44f4-9451-8107cb2767db",
        "providerDisplayName": "Norma Paulk",
        "isActive": True,
        "properties": {"Account": {"$type": "System.String", "$value": "norma@example.com"}},
    },
    "instanceId": "a4ae4bcf-8de9-4f3a-8c1a-d2ac1f4d6a4b",
}


class GitHosts:
    """All hosting services behind one address; use it as an async context manager."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.status = 200
        self.body: bytes | None = None
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        for path, answer in (
            ("/api/v3/user", GITHUB),
            ("/api/v4/user", GITLAB),
            ("/api/v1/user", FORGEJO),
            ("/2.0/user", BITBUCKET),
            ("/rest/api/1.0/users/jcitizen", DATA_CENTER),
            ("/_apis/connectionData", AZURE),
        ):
            app.router.add_get(path, self._handler(answer))
        app.router.add_get("/plugins/servlet/applinks/whoami", self._who_am_i)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _handler(self, answer: dict[str, Any]) -> Any:
        async def handle(request: web.Request) -> web.Response:
            self.requests.append(request.path)
            if self.status != 200:
                return web.Response(status=self.status, headers={"Location": "/elsewhere"})
            if not _is_good(request):
                return web.json_response({"message": "Bad credentials"}, status=401)
            if self.body is not None:
                return web.Response(body=self.body)
            return web.json_response(answer)

        return handle

    async def _who_am_i(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        return web.Response(text="jcitizen" if _is_good(request) else "")


def _is_good(request: web.Request) -> bool:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme == "Basic":
        credentials = base64.b64decode(credentials).decode().rpartition(":")[2]
    return credentials == "good"
