"""Whatever a client asks of git providers, and whatever they answer, the answer is no 500."""

from collections.abc import AsyncIterator, Iterator

import aiohttp
import msgspec
import pytest
from yarl import URL

from agentsvc.domain.orders import Provider
from agentsvc.http import v0, v1
from agentsvc.http.routes import OF_GIT_PROVIDERS, Route
from tests.git_hosts import GitHosts
from tests.http.test_bad_input import PATH_VALUES, QUERY_VALUES
from tests.service import Client

ROUTES = [route for route in [*v0.ROUTES, *v1.ROUTES] if route.errors == OF_GIT_PROVIDERS]
REPOSITORY = "{repository_name:.+}"
CURSORS = ["WyIxIl0", "WyJhLzEiXQ", "WzFd", "WyIuLi8uLiJd"]
"""Page ids that are well formed: of a number, of a workspace, of an offset, of a path."""

ANSWERS = (200, 400, 401, 403, 404, 422, 502)


@pytest.fixture
async def git_hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


def requests_of(route: Route, good: dict[str, str]) -> Iterator[str]:
    """Yield paths in which one parameter, or the name of the repository, is replaced."""
    names = [one.encode_name for one in msgspec.structs.fields(route.query)] if route.query else []
    rest = {name: value for name, value in good.items() if name in names}
    path = route.path.replace(REPOSITORY, good["repository"])
    for name in names:
        for value in [*QUERY_VALUES, *CURSORS, "a%2Fb"]:
            query = {**rest, name: value}
            yield f"{path}?" + "&".join(f"{key}={text}" for key, text in query.items())
    for value in PATH_VALUES if REPOSITORY in route.path else ():
        others = "&".join(f"{key}={text}" for key, text in rest.items())
        yield f"{route.path.replace(REPOSITORY, value)}?{others}"


@pytest.mark.parametrize("provider", Provider)
async def test_nothing_that_is_asked_of_a_provider_is_a_500(
    client: Client, git_hosts: GitHosts, provider: Provider
) -> None:
    git_hosts.body = b"[]"
    token = {"token": "good", "host": git_hosts.url}
    body = {"provider_tokens": {provider.value: token}}
    assert (await client.post("/api/v1/secrets/git-providers", json=body)).status == 200
    repository = "a/b/c" if provider is Provider.AZURE_DEVOPS else "a/b"
    good = {
        "provider": provider.value,
        "repository": repository,
        "query": "x",
        "file_path": "a.md",
    }
    problems = {}
    async with aiohttp.ClientSession(headers={"X-Session-API-Key": client.key or ""}) as session:
        for path in [path for route in ROUTES for path in requests_of(route, good)]:
            async with session.get(URL(client.base_url + path, encoded=True)) as response:
                if response.status not in ANSWERS:
                    problems[path] = f"{response.status} {await response.text()}"
    assert len(ROUTES) == 15
    assert problems == {}
