"""What requests to git hosting services may do, and what their failures become."""

import base64
import contextlib
import gzip
import json
from typing import TYPE_CHECKING, Self

import pytest
from aiohttp import web

from agentsvc.base.errors import (
    AgentsvcError,
    BadRequest,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
    NotFound,
)
from agentsvc.domain.orders import Provider
from agentsvc.git import ANSWER_MAX, BranchQuery, RepositoryQuery
from agentsvc.git.client import ITEMS_MAX, REDIRECTS_MAX, wait_seconds
from agentsvc.git.github import GitHub
from agentsvc.git.gitlab import GitLab
from agentsvc.git.hosting import Hosting, Places
from agentsvc.git.microagents import MICROAGENT_MAX
from tests.git.conftest import GitUser
from tests.plugin_loading import part

if TYPE_CHECKING:
    from githosts.azure import AzureDevOps
    from githosts.bitbucket import Bitbucket
    from githosts.data_center import DataCenter
    from githosts.forgejo import Forgejo
else:
    AzureDevOps = part("githosts.azure").AzureDevOps
    Bitbucket = part("githosts.bitbucket").Bitbucket
    DataCenter = part("githosts.data_center").DataCenter
    Forgejo = part("githosts.forgejo").Forgejo

REPOSITORY = "octocat/hello-world"


async def ask(user: GitUser, text: str = "") -> None:
    query = BranchQuery(repository=REPOSITORY, text=text, limit=30)
    await user.providers.search_branches(user.id, Provider.GITHUB, query)


@pytest.mark.parametrize("text", ["", "fix"])
@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (400, {}, BadRequest),
        (401, {}, NotAuthenticated),
        (403, {}, NotAllowed),
        (403, {"X-RateLimit-Remaining": "1"}, NotAllowed),
        (403, {"X-RateLimit-Remaining": "0"}, GitProviderRateLimited),
        (403, {"Retry-After": "30"}, GitProviderRateLimited),
        (404, {}, NotFound),
        (422, {}, BadRequest),
        (429, {}, GitProviderRateLimited),
        (204, {}, GitProviderUnavailable),
        (302, {}, GitProviderUnavailable),
        (410, {}, GitProviderUnavailable),
        (500, {}, GitProviderUnavailable),
        (503, {"Retry-After": "30"}, GitProviderUnavailable),
    ],
)
async def test_a_status_becomes_an_error_that_says_what_is_wrong(
    user: GitUser, status: int, headers: dict[str, str], error: type[AgentsvcError], text: str
) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.status, user.hosts.headers = status, headers
    with pytest.raises(AgentsvcError) as caught:
        await ask(user, text)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"data": null, "errors": [{"type": "RATE_LIMITED"}]}', GitProviderRateLimited),
        (b'{"data": null, "errors": [{"type": "FORBIDDEN"}]}', NotAllowed),
        (b'{"data": null, "errors": [{"type": "INSUFFICIENT_SCOPES"}]}', NotAllowed),
        (
            b'{"data": null, "errors": [{"message": "Something went wrong"}]}',
            GitProviderUnavailable,
        ),
        (b'{"errors": [{"type": "SOMETHING"}]}', GitProviderUnavailable),
        (b'{"data": {"repository": null}}', NotFound),
        (b'{"data": {"repository": {"refs": null}}}', NotFound),
        (b'{"data": []}', GitProviderUnavailable),
        (b'{"data": {"repository": {"refs": {"nodes": [{}]}}}}', GitProviderUnavailable),
        (b"[]", GitProviderUnavailable),
        (b"", GitProviderUnavailable),
    ],
)
async def test_a_query_that_fails_becomes_an_error_too(
    user: GitUser, body: bytes, error: type[AgentsvcError]
) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.body = body
    with pytest.raises(AgentsvcError) as caught:
        await ask(user, "fix")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b"5",
        b"[5]",
        b'[{"name": "x"}]',
        b'[{"name": "x", "commit": {"sha": 5}}]',
        b'[{"name": "\xff", "commit": {"sha": "5"}}]',
        b"[" * 100_000,
        b"[" * 5000 + b"]" * 5000,
        b" " * (ANSWER_MAX + 1) + b"[]",
    ],
)
async def test_an_answer_of_another_form_is_a_fault_of_the_provider(
    user: GitUser, body: bytes
) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.body = body
    with pytest.raises(GitProviderUnavailable):
        await ask(user)


_PULL = '{"number": 1, "title": "t", "repository": {"nameWithOwner": "a/b"}, %s}'
_OF_USER = '{"data": {"viewer": {"pullRequests": {"nodes": [%s]}}, "search": {"nodes": []}}}'
ODD_ANSWERS = (
    "5",
    "[5]",
    "[[]]",
    "[null, {}]",
    '{"values": 5}',
    '{"values": [5]}',
    '{"values": [{"uuid": [], "full_name": 5, "id": {}}]}',
    '{"data": {"viewer": 5, "currentUser": 5, "repository": {"refs": {"nodes": [[]]}}}}',
    _OF_USER % (_PULL % '"reviews": {"nodes": 5}, "commits": {"nodes": {"0": 5}}'),
    '[{"id": 1%s, "name": 5, "full_name": "a/b", "private": [{"name": {}}]}]' % ("0" * 400),
)


@pytest.mark.parametrize(
    "provider", [one for one in Provider if one is not Provider.ENTERPRISE_SSO]
)
async def test_an_answer_of_any_form_is_no_fault_of_the_server(
    user: GitUser, provider: Provider
) -> None:
    await user.connect(provider)
    git, name = user.providers, "a/b/c" if provider is Provider.AZURE_DEVOPS else "a/b"
    for body in ODD_ANSWERS:
        user.hosts.body = body.encode()
        for asked in (
            git.get_account(user.id),
            git.get_organizations(user.id),
            git.suggested_tasks(user.id),
            git.search_installations(user.id, provider, None, 10),
            git.search_repositories(user.id, provider, RepositoryQuery()),
            git.search_repositories(user.id, provider, RepositoryQuery(text="a/b")),
            git.search_branches(user.id, provider, BranchQuery(repository=name)),
            git.search_branches(user.id, provider, BranchQuery(repository=name, text="a")),
            git.microagents(user.id, name),
            git.get_microagent(user.id, name, "a.md"),
        ):
            with contextlib.suppress(AgentsvcError):
                await asked


@pytest.mark.parametrize("provider", [Provider.GITHUB, Provider.GITLAB, Provider.FORGEJO])
async def test_a_link_to_nowhere_leads_to_no_next_page(user: GitUser, provider: Provider) -> None:
    await user.connect(provider)
    user.hosts.body, user.hosts.headers = b"[]", {"Link": '<http://[/x>; rel="next"'}
    found = await user.providers.search_repositories(user.id, provider, RepositoryQuery())
    assert (found.items, found.cursor) == ([], None)


async def test_an_answer_that_grows_when_unpacked_is_not_read_to_its_end(user: GitUser) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.body = gzip.compress(b" " * (ANSWER_MAX + 1) + b"[]")
    user.hosts.headers = {"Content-Encoding": "gzip"}
    with pytest.raises(GitProviderUnavailable) as caught:
        await ask(user)
    assert caught.value.detail == "the answer is too long"


async def test_a_number_that_no_client_could_read_is_a_fault_of_the_provider(
    user: GitUser,
) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.body = b'[{"id": 1, "full_name": "a/b", "stargazers_count": 1%s}]' % (b"0" * 30)
    with pytest.raises(GitProviderUnavailable):
        await user.providers.search_repositories(user.id, Provider.GITHUB, RepositoryQuery())


@pytest.mark.parametrize(
    ("provider", "body", "item"),
    [
        (Provider.GITHUB, b"[%s]", b'{"id": 1, "full_name": "a/b"}'),
        (Provider.BITBUCKET, b'{"values": [%s]}', b'{"uuid": "1", "full_name": "a/b"}'),
    ],
)
async def test_of_more_items_than_anybody_asks_for_the_first_are_taken(
    user: GitUser, provider: Provider, body: bytes, item: bytes
) -> None:
    await user.connect(provider)
    user.hosts.body = body % b",".join([item] * (ITEMS_MAX + 1))
    query = RepositoryQuery(installation_id="1")
    if provider is Provider.GITHUB:
        query = RepositoryQuery()
    found = await user.providers.search_repositories(user.id, provider, query)
    assert len(found.items) == ITEMS_MAX


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("é", GitProviderUnavailable),
        (base64.b64encode(b"x" * (MICROAGENT_MAX + 1)).decode(), NotFound),
    ],
)
async def test_a_microagent_that_is_none_is_refused(
    user: GitUser, content: str, error: type[AgentsvcError]
) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.body = json.dumps({"content": content, "encoding": "base64"}).encode()
    with pytest.raises(error):
        await user.providers.get_microagent(user.id, REPOSITORY, "a.md")


# Where a token goes


class Signpost:
    """A host that answers every request by sending it on; `tokens` are those it was shown."""

    def __init__(self, target: str, status: int = 302) -> None:
        self.target = target
        self.status = status
        self.tokens: list[str] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", ""))
        target = self.target.replace("{host}", self.url)
        return web.Response(status=self.status, headers={"Location": target} if target else {})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_token_is_not_shown_to_another_host(user: GitUser, status: int) -> None:
    path = f"/api/v3/repos/{REPOSITORY}/branches?per_page=30&page=1"
    async with Signpost(user.hosts.url + path, status) as signpost:
        await user.connect(Provider.GITHUB, host=signpost.url)
        with pytest.raises(GitProviderUnavailable):
            await ask(user)
        assert signpost.tokens == ["Bearer good"]
    assert user.hosts.requests == []


@pytest.mark.parametrize(
    "target",
    [
        "/elsewhere",
        "/api/v3",
        "/api/v3/../elsewhere",
        "//127.0.0.1/api/v3/user",
        "http://[",
        "ftp://127.0.0.1/api/v3/user",
        "",
    ],
)
async def test_a_token_stays_below_the_address_of_the_api(user: GitUser, target: str) -> None:
    async with Signpost(target) as signpost:
        await user.connect(Provider.GITHUB, host=signpost.url)
        with pytest.raises(GitProviderUnavailable):
            await ask(user)
        assert len(signpost.tokens) == 1


async def test_a_service_that_sends_in_circles_is_left(user: GitUser) -> None:
    async with Signpost("{host}/api/v3/again") as signpost:
        await user.connect(Provider.GITHUB, host=signpost.url)
        with pytest.raises(GitProviderUnavailable):
            await ask(user)
        assert len(signpost.tokens) == REDIRECTS_MAX + 1


async def test_a_query_is_sent_nowhere_else_at_all(user: GitUser) -> None:
    await user.connect(Provider.GITHUB)
    user.hosts.status = 307
    user.hosts.headers = {"Location": f"{user.hosts.url}/api/graphql/again"}
    with pytest.raises(GitProviderUnavailable):
        await ask(user, "fix")
    assert user.hosts.requests == ["/api/graphql"]


@pytest.mark.parametrize(
    ("kind", "base", "is_usual", "places"),
    [
        (
            GitHub,
            "https://github.com",
            True,
            Places("https://api.github.com", "https://api.github.com/graphql"),
        ),
        (
            GitHub,
            "https://octocorp.ghe.com",
            False,
            Places("https://api.octocorp.ghe.com", "https://api.octocorp.ghe.com/graphql"),
        ),
        (
            GitHub,
            "https://git.example.com/hub",
            False,
            Places("https://git.example.com/hub/api/v3", "https://git.example.com/hub/api/graphql"),
        ),
        (
            GitLab,
            "https://gitlab.com",
            True,
            Places("https://gitlab.com/api/v4", "https://gitlab.com/api/graphql"),
        ),
        (
            GitLab,
            "http://gitlab.local:8080",
            False,
            Places("http://gitlab.local:8080/api/v4", "http://gitlab.local:8080/api/graphql"),
        ),
        (Forgejo, "https://codeberg.org", True, Places("https://codeberg.org/api/v1")),
        (Bitbucket, "https://bitbucket.org", True, Places("https://api.bitbucket.org/2.0")),
        (Bitbucket, "https://mirror.example.com", False, Places("https://mirror.example.com/2.0")),
        (DataCenter, "https://git.example.com/bb", False, Places("https://git.example.com/bb")),
        (
            AzureDevOps,
            "https://dev.azure.com",
            True,
            Places("https://app.vssps.visualstudio.com"),
        ),
        (AzureDevOps, "https://tfs.example.com", False, Places("https://tfs.example.com")),
    ],
)
def test_every_service_has_its_api_in_its_place(
    kind: type[Hosting], base: str, is_usual: bool, places: Places
) -> None:
    assert kind.places(base, is_usual=is_usual) == places


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, 60),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0"}, 1),
        ({"Retry-After": "999999"}, 3600),
        ({"Retry-After": "soon"}, 60),
        ({"Retry-After": "9" * 40}, 60),
        ({"X-RateLimit-Reset": "1090"}, 90),
        ({"X-RateLimit-Reset": "10"}, 1),
        ({"RateLimit-Reset": "1015"}, 15),
        ({"Retry-After": "5", "X-RateLimit-Reset": "1090"}, 5),
    ],
)
def test_a_service_says_how_long_it_wants_to_be_left_alone(
    headers: dict[str, str], seconds: int
) -> None:
    assert wait_seconds(headers, 1000.0) == seconds
