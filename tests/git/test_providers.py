"""Git hosting services: who somebody is there, and what may not be taken for a refusal."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentsvc.agentserver import SafeConnector
from agentsvc.base.errors import GitProviderRateLimited, GitProviderUnavailable, NotAuthenticated
from agentsvc.base.values import Secret
from agentsvc.domain.orders import Provider
from agentsvc.git import ANSWER_MAX, GitAccount, GitProviders
from agentsvc.models.hosts import host_of_url
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.user_secrets import ProviderToken
from agentsvc.storage.database import Database
from agentsvc.storage.vault import Vault
from tests.git_hosts import GitHosts
from tests.plugin_loading import git_hosts


@pytest.fixture
async def hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


@pytest.fixture
async def providers(db: Database, tmp_path: Path, hosts: GitHosts) -> AsyncIterator[GitProviders]:
    vault = Vault.open(tmp_path / "master.key")
    providers = GitProviders(
        SecretStore(db, vault),
        time_limit=0.5,
        reach=SafeConnector(listed=[host_of_url(hosts.url), "192.0.2.1"]),
        more=git_hosts(),
    )
    await providers.open()
    yield providers
    await providers.close()


def token(host: str | None, value: str = "good") -> ProviderToken:
    return ProviderToken(token=Secret(value), host=host)


@pytest.mark.parametrize(
    ("provider", "value", "account"),
    [
        (
            Provider.GITHUB,
            "good",
            GitAccount(
                id="583231",
                login="octocat",
                avatar_url="https://avatars.githubusercontent.com/u/583231?v=4",
                company="@github",
                name="The Octocat",
            ),
        ),
        (
            Provider.GITLAB,
            "good",
            GitAccount(
                id="1",
                login="john_smith",
                avatar_url="http://localhost:3000/uploads/user/avatar/1/index.jpg",
                company="Widgets",
                name="John Smith",
                email="john@example.com",
            ),
        ),
        (
            Provider.FORGEJO,
            "good",
            GitAccount(
                id="7",
                login="earl",
                avatar_url="https://codeberg.org/avatars/7",
                name="Earl Warren",
                email="earl@noreply.codeberg.org",
            ),
        ),
        *(
            (
                Provider.BITBUCKET,
                value,
                GitAccount(
                    id="557058:1",
                    login="evzijst",
                    avatar_url="https://bitbucket.org/account/evzijst/avatar/32/",
                    name="Emma Paris",
                ),
            )
            for value in ("good", "evzijst:good")
        ),
        (
            Provider.BITBUCKET_DATA_CENTER,
            "good",
            GitAccount(id="101", login="jcitizen", name="Jane Citizen", email="jane@example.com"),
        ),
        (
            Provider.AZURE_DEVOPS,
            "good",
            GitAccount(
                id="d6245f20-2af8-44f4-9451-8107cb2767db",
                login="norma@example.com",
                name="Norma Paulk",
                email="norma@example.com",
            ),
        ),
    ],
)
async def test_every_provider_tells_whose_token_it_is(
    providers: GitProviders, hosts: GitHosts, provider: Provider, value: str, account: GitAccount
) -> None:
    assert await providers.identify(provider, token(hosts.url, value)) == account


async def test_a_token_that_stands_for_nobody_with_a_name_is_known(
    providers: GitProviders, hosts: GitHosts
) -> None:
    hosts.body = b'{"type": "app_user", "uuid": "{1}", "display_name": "Builds"}'
    found = await providers.identify(Provider.BITBUCKET, token(hosts.url))
    assert found == GitAccount(id="{1}", login="", name="Builds")


WITH_API = [provider for provider in Provider if provider is not Provider.ENTERPRISE_SSO]


@pytest.mark.parametrize("provider", WITH_API)
async def test_every_provider_refuses_a_bad_token(
    providers: GitProviders, hosts: GitHosts, provider: Provider
) -> None:
    with pytest.raises(NotAuthenticated, match=f"valid {provider.value} token"):
        await providers.identify(provider, token(hosts.url, "bad"))


@pytest.mark.parametrize("status", [204, 302, 400, 403, 404, 410, 422, 500])
async def test_only_a_clear_refusal_is_one(
    providers: GitProviders, hosts: GitHosts, status: int
) -> None:
    hosts.status = status
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(Provider.GITHUB, token(hosts.url))
    assert hosts.requests == ["/api/v3/user"]


async def test_a_provider_that_wants_fewer_requests_says_when_to_come_back(
    providers: GitProviders, hosts: GitHosts
) -> None:
    hosts.status = 429
    with pytest.raises(GitProviderRateLimited) as caught:
        await providers.identify(Provider.GITHUB, token(hosts.url))
    assert caught.value.retry_after_seconds == 60


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b"5", b"x" * (ANSWER_MAX + 1)])
async def test_an_answer_of_another_form_is_no_refusal(
    providers: GitProviders, hosts: GitHosts, body: bytes
) -> None:
    hosts.body = body
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(Provider.GITHUB, token(hosts.url))


@pytest.mark.parametrize("provider", [Provider.ENTERPRISE_SSO, Provider.BITBUCKET_DATA_CENTER])
async def test_a_provider_without_host_or_api_cannot_be_asked(
    providers: GitProviders, provider: Provider
) -> None:
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(provider, token(None))


async def test_a_host_that_cannot_be_meant_is_not_asked(providers: GitProviders) -> None:
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(Provider.GITHUB, token("http:[::1]:4711/"))


async def test_a_provider_that_takes_too_long_cannot_be_asked(providers: GitProviders) -> None:
    # 192.0.2.0/24 is for documentation: nothing answers there, or the network says so at once.
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(Provider.GITHUB, token("http://192.0.2.1"))


async def test_without_connections_nobody_can_be_asked(
    providers: GitProviders, hosts: GitHosts
) -> None:
    await providers.close()
    with pytest.raises(GitProviderUnavailable):
        await providers.identify(Provider.GITHUB, token(hosts.url))


@pytest.mark.parametrize(
    "host",
    [
        "{own}",
        "http://localhost:{port}",
        "http://127.1:{port}",
        "http://[::1]:{port}",
        "http://0x7f000001:{port}",
    ],
)
async def test_a_host_in_our_own_network_is_asked_for_who_is_trusted_only(
    db: Database, tmp_path: Path, hosts: GitHosts, host: str
) -> None:
    providers = GitProviders(SecretStore(db, Vault.open(tmp_path / "own.key")))
    await providers.open()
    named = token(host.format(own=hosts.url, port=hosts.url.rpartition(":")[2]))
    with pytest.raises(GitProviderUnavailable, match="not at a public address"):
        await providers.identify(Provider.GITHUB, named)
    assert hosts.requests == []
    if host == "{own}":
        await providers.identify(Provider.GITHUB, named, is_trusted=True)
        assert hosts.requests
    await providers.close()
